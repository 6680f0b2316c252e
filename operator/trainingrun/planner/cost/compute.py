"""Work of one micro-batch on one rank: matrix products, attention, what passes through memory, and what must
be started.

Sums over the whole model are made once for each (model, tensor, expert tensor) and kept: a search asks for
thousands of layouts of one model. Seconds come later, in `rates`: this file knows shapes only.

A matrix product of n tokens with a K x N weight is 2 n K N operations forward, the same for the input's
gradient and the same for the weight's; it reads and writes K N + n (K + N) elements each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from trainingrun.planner.types import ModelShape

_TILE = 128  # elements of a tile of the matrix units' kernels


@dataclass(frozen=True, slots=True)
class Shapes:
    """Sums over all layers, on one tensor rank. Elements, unless named otherwise."""

    weights: float  # of matrices that every token passes
    through: float  # inputs and outputs of their products, for each token
    expert_weights: float  # of one expert, all layers together, on one expert tensor rank
    expert_through: float  # for each token of an expert
    expert_layers: int
    routed: float  # hidden elements of a token that goes to an expert, all layers together
    attention: float  # (query-key + value dimensions) x heads, of layers that look back over everything
    windowed: float  # the same, of layers with a window
    attention_layers: int
    score_heads: float  # heads x layers: their scores pass through memory without flash attention
    whole_elements: (
        float  # of the hidden state that norms and residuals pass, for each token; not cut by tensor
    )
    cut_elements: float  # inner activations that are passed element by element
    scan: float  # inner elements of state-space layers
    layers: float  # what must be started, in layers
    vocabulary: float  # rows of the head on a tensor rank
    hidden: int
    key_values: float  # keys and values of a token, all layers together: what context ranks pass on
    extra_heads: int  # heads of layers that predict later tokens
    aligned: bool  # heads fill whole tiles of the matrix units
    ragged: bool  # hidden or inner sizes do not


@lru_cache(maxsize=4096)
def shapes(model: ModelShape, tensor: int, expert_tensor: int) -> Shapes:
    hidden, heads = model.hidden_size, model.attention_heads
    hybrid, experts = model.hybrid, model.experts
    predicting = model.prediction_layers
    total = model.layers + predicting
    attending = hybrid.attention_layers if hybrid else total
    feeding = hybrid.feed_forward_layers if hybrid else total
    with_experts = (feeding if hybrid else experts.layers(total)) if experts else 0
    dense = feeding - with_experts

    pairs: list[tuple[float, float, float]] = []  # how many of them, inputs, outputs
    if model.latent is not None:
        latent = model.latent
        query, value = heads * latent.query_dim, heads * latent.value_dim
        if latent.query_rank:
            pairs += [(attending, hidden, latent.query_rank), (attending, latent.query_rank, query / tensor)]
        else:
            pairs.append((attending, hidden, query / tensor))
        pairs.append((attending, hidden, latent.key_value_rank + latent.rotary_dim))
        pairs.append(
            (attending, latent.key_value_rank, heads * (latent.nope_dim + latent.value_dim) / tensor)
        )
        pairs.append((attending, value / tensor, hidden))
        dimensions = query + value
        key_values = float(query + value)  # they are expanded before attention
        head_dim = latent.query_dim
    else:
        query, both = heads * model.head_dim, 2 * model.key_value_heads * model.head_dim
        own = max(both / tensor, 2 * model.head_dim)
        pairs += [(attending, hidden, query / tensor + own), (attending, query / tensor, hidden)]
        dimensions, key_values, head_dim = 2 * query, own * tensor, model.head_dim
    inner = model.intermediate_size
    wide = 2 if model.gated else 1
    pairs += [(dense, hidden, wide * inner / tensor), (dense, inner / tensor, hidden)]
    cut = attending * (dimensions / tensor) + dense * (wide + 1) * inner / tensor
    whole = float(hidden * (2 * attending + 2 * feeding))

    expert_weights = expert_through = routed = 0.0
    if experts:
        inside = experts.latent_size or hidden
        size = experts.intermediate_size / expert_tensor
        expert_weights = with_experts * (wide + 1) * inside * size
        expert_through = with_experts * ((inside + wide * size) + (size + inside))
        routed = float(with_experts * inside)
        pairs.append((with_experts, hidden, experts.count))
        if experts.latent_size:
            pairs += [(with_experts, hidden, inside / tensor), (with_experts, inside / tensor, hidden)]
        if experts.shared_intermediate_size:
            shared = experts.shared_intermediate_size / tensor
            pairs += [(with_experts, hidden, wide * shared), (with_experts, shared, hidden)]
            cut += with_experts * (wide + 1) * shared
    scan = 0.0
    if hybrid:
        channels = hybrid.state_heads * hybrid.state_head_dim
        outputs = 2 * channels + 2 * hybrid.groups * hybrid.state_size + hybrid.state_heads
        pairs += [
            (hybrid.state_layers, hidden, outputs / tensor),
            (hybrid.state_layers, channels / tensor, hidden),
        ]
        scan = hybrid.state_layers * channels / tensor
        whole += hidden * 2 * hybrid.state_layers
    sliding = min(model.sliding_layers, attending) if model.sliding_window else 0
    started = attending * 0.5 + feeding * 0.5 + (hybrid.state_layers if hybrid else 0)
    return Shapes(
        weights=sum(many * k * n for many, k, n in pairs),
        through=sum(many * (k + n) for many, k, n in pairs),
        expert_weights=expert_weights,
        expert_through=expert_through,
        expert_layers=with_experts,
        routed=routed,
        attention=(attending - sliding) * dimensions / tensor,
        windowed=sliding * dimensions / tensor,
        attention_layers=attending,
        score_heads=attending * heads / tensor,
        whole_elements=whole,
        cut_elements=cut,
        scan=scan,
        layers=started,
        vocabulary=model.vocabulary_size / tensor,
        hidden=hidden,
        key_values=attending * key_values / tensor,
        extra_heads=predicting,
        aligned=head_dim % 8 == 0,
        ragged=bool(hidden % _TILE or (experts.intermediate_size if experts else inner) % _TILE),
    )


@lru_cache(maxsize=4096)
def rank_parameters(model: ModelShape, tensor: int, expert_tensor: int) -> tuple[float, float, float, float]:
    """Of one tensor rank, all layers together: those that every token passes, those of one expert of each
    layer; then the embedding's, and the head's where it is not tied.
    """
    sums = shapes(model, tensor, expert_tensor)
    table = model.vocabulary_size * model.hidden_size / tensor
    norms = 4.0 * model.hidden_size * sums.layers
    return sums.weights + norms, sums.expert_weights, table, 0.0 if model.tied_embeddings else table


def flops_per_token(model: ModelShape, sequence: int, *, causal: bool = True) -> float:
    """Forward and backward, without recomputation: three times (2 x weights that a token passes +
    attention). Attention is 2 x sequence x (query-key + value dimensions), half of it where the future is
    not looked at.
    """
    sums = shapes(model, 1, 1)
    experts = model.experts
    weights = sums.weights + (experts.per_token * sums.expert_weights if experts else 0.0)
    weights += (1 + sums.extra_heads) * sums.vocabulary * sums.hidden
    share = 0.5 if causal else 1.0
    window = min(sequence, model.sliding_window) if model.sliding_window else 0
    looked = sums.attention * sequence * share + sums.windowed * window
    return 3.0 * (2.0 * weights + 2.0 * looked)
