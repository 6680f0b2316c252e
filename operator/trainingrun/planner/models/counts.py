"""How many parameters a model has, and a rank of it. Exact, for every shape that `ModelShape` can tell.

Tensor ranks cut projections and vocabulary; norms, routers, the small sides of latent attention and the biases
of what is summed up are whole on each. Expert ranks hold experts of their own. Called by the cost model for
every configuration, so sums are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from trainingrun.planner.types import ModelShape


@dataclass(frozen=True, slots=True)
class Share:
    """Parameters of one layer (or of several) on one rank."""

    dense: float  # the same on all data and context ranks
    routed: float = 0.0  # of routed experts: the same only on the ranks that hold the same experts

    @property
    def total(self) -> float:
        return self.dense + self.routed


def count_parameters(model: ModelShape) -> int:
    """Trainable parameters of the whole model, as transformers counts them: a tied head once, and without layers
    that only predict later tokens.
    """
    return round(stack(model, 0, model.layers).total + embedding(model) + final(model))


def active_parameters(model: ModelShape) -> int:
    """Those that one token passes."""
    layers = stack(model, 0, model.layers)
    experts = model.experts
    share = experts.per_token / experts.count if experts else 0.0
    return round(layers.dense + layers.routed * share + embedding(model) + final(model))


def norm_parameters(model: ModelShape, size: int = 0) -> int:
    if not model.norm_weights:
        return 0
    return (2 if model.norm_bias else 1) * (size or model.hidden_size)


def vocabulary_rows(model: ModelShape, tensor: int = 1, multiple: int = 0) -> int:
    """Rows on a tensor rank; frameworks round the vocabulary up to a `multiple` for each rank."""
    if multiple:
        return -(-model.vocabulary_size // (multiple * tensor)) * multiple
    return -(-model.vocabulary_size // tensor)


def position_rows(model: ModelShape) -> int:
    if model.positions >= 0:
        return model.positions
    return 0 if model.rotary else model.max_position_embeddings


def embedding(model: ModelShape, tensor: int = 1, multiple: int = 0) -> int:
    """Of the first stage: the table, learned positions, a norm of their own."""
    rows = vocabulary_rows(model, tensor, multiple) + position_rows(model)
    return rows * model.hidden_size + (norm_parameters(model) if model.embedding_norm else 0)


def final(model: ModelShape, tensor: int = 1, multiple: int = 0, *, tied: bool | None = None) -> int:
    """Of the last stage: the last norm, and the head where it is a matrix of its own."""
    rows = vocabulary_rows(model, tensor, multiple)
    count = norm_parameters(model) if model.final_norm else 0
    count += rows if model.head_bias else 0
    shared = model.tied_embeddings if tied is None else tied
    return count + (0 if shared else rows * model.hidden_size)


@lru_cache(maxsize=4096)
def attention(model: ModelShape, tensor: int = 1) -> float:
    """Of one layer's attention, norms of queries and keys included."""
    hidden, heads = model.hidden_size, model.attention_heads
    count: float
    if model.latent is not None:
        latent = model.latent
        query = heads * latent.query_dim
        if latent.query_rank:
            count = hidden * latent.query_rank + norm_parameters(model, latent.query_rank)
            count += latent.query_rank * query / tensor
        else:
            count = hidden * query / tensor
        count += hidden * (latent.key_value_rank + latent.rotary_dim)
        count += norm_parameters(model, latent.key_value_rank)
        count += latent.key_value_rank * heads * (latent.nope_dim + latent.value_dim) / tensor
        return count + heads * latent.value_dim * hidden / tensor
    query, keys = heads * model.head_dim, model.key_value_heads * model.head_dim
    own_keys = max(keys / tensor, model.head_dim)  # a head of keys is never cut
    count = 2 * hidden * query / tensor + 2 * hidden * own_keys
    if model.query_bias:
        count += query / tensor + 2 * own_keys
    if model.output_bias:
        count += hidden
    if model.head_norms:
        count += 2 * norm_parameters(model, model.head_dim)
    if model.projection_norms:
        count += query + keys
    return count + (heads / tensor if model.sinks else 0)


def feed_forward(model: ModelShape, tensor: int = 1) -> float:
    return _feed_forward(model, model.hidden_size, model.intermediate_size, tensor, model.feed_forward_bias)


def _feed_forward(model: ModelShape, outside: int, inside: int, tensor: int, bias: bool) -> float:
    wide = 2 if model.gated else 1
    count = (wide + 1) * outside * inside / tensor
    return count + (wide * inside / tensor + outside if bias else 0)


@lru_cache(maxsize=4096)
def experts(model: ModelShape, tensor: int = 1, expert: int = 1, expert_tensor: int = 1) -> Share:
    """Of one layer's feed-forward, where it has experts."""
    given, hidden = model.experts, model.hidden_size
    if given is None:
        return Share(feed_forward(model, tensor))
    outside = given.latent_size or hidden
    each = _feed_forward(model, outside, given.intermediate_size, expert_tensor, given.bias)
    dense = float(hidden * given.count + (given.count if given.router_bias else 0))
    if given.latent_size:
        dense += 2 * hidden * given.latent_size
    if given.shared_intermediate_size:
        dense += _feed_forward(model, hidden, given.shared_intermediate_size, tensor, False)
        dense += hidden if given.shared_gate else 0
    return Share(dense, given.count / expert * each)


@lru_cache(maxsize=4096)
def state_space(model: ModelShape, tensor: int = 1) -> float:
    """Of one Mamba 2 layer."""
    hybrid, hidden = model.hybrid, model.hidden_size
    if hybrid is None:
        return 0.0
    channels = hybrid.state_heads * hybrid.state_head_dim
    convolved = channels + 2 * hybrid.groups * hybrid.state_size
    count = hidden * (channels + convolved + hybrid.state_heads) + channels * hidden
    count += convolved * (hybrid.kernel + 1) + 3 * hybrid.state_heads + channels
    return count / tensor


@lru_cache(maxsize=65536)
def stack(
    model: ModelShape,
    begin: int,
    end: int,
    tensor: int = 1,
    expert: int = 1,
    expert_tensor: int = 1,
) -> Share:
    """Layers `begin` to `end` (exclusive). The layers of a hybrid are taken to be mixed evenly."""
    many = end - begin
    routed = experts(model, tensor, expert, expert_tensor)
    if model.hybrid is not None:
        hybrid, share = model.hybrid, many / model.layers
        dense = hybrid.attention_layers * attention(model, tensor)
        dense += hybrid.state_layers * state_space(model, tensor)
        dense += hybrid.feed_forward_layers * routed.dense
        norms = many * norm_parameters(model)
        return Share(share * dense + norms, share * hybrid.feed_forward_layers * routed.routed)
    each = attention(model, tensor) + model.norms * norm_parameters(model)
    if model.experts is None:
        return Share(many * (each + feed_forward(model, tensor)))
    with_experts = model.experts.layers(end) - model.experts.layers(begin)
    dense = many * each + (many - with_experts) * feed_forward(model, tensor) + with_experts * routed.dense
    return Share(dense, with_experts * routed.routed)
