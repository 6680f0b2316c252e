"""Bytes that a layer keeps between its forward and its backward pass, for one micro-batch on one rank.

Per token, in bytes of the activations' format (2 for bfloat16) times

    norms         2 h each: input and output             whole, or cut by sequence parallelism
    attention     a d + 2 k d + a d: queries, keys and values, output          cut by tensor
    scores        without flash attention 5 a s bytes: softmax, dropout's mask, what is left; else 4 a s
    feed-forward  gate, up and their product: 3 f; without a gate 2 f          cut by tensor
    dropout       a byte for each hidden element and each of two masks         as norms

Flash attention keeps four bytes a head and token more. Recomputation drops what can be computed from the
layer's input.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from trainingrun.planner.cost.types import Framework, Recompute, Workload
from trainingrun.planner.models import counts
from trainingrun.planner.types import ModelShape


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes a token, of one layer."""

    dense: float  # with a dense feed-forward
    experts: float  # with experts
    input: float  # of the layer: all that full recomputation keeps


@lru_cache(maxsize=65536)
def kept(
    model: ModelShape,
    coefficients: tuple[tuple[str, float], ...],
    size: float,
    tensor: int,
    context: int,
    expert: int,
    expert_tensor: int,
    sequence: int,
    sequence_parallel: bool,
    dropout: bool,
    flash: bool,
    recompute: Recompute,
) -> Kept:
    given = dict(coefficients)
    hidden = model.hidden_size
    whole = tensor if sequence_parallel else 1
    selective = recompute is Recompute.SELECTIVE
    # A norm's input and output; modules that are not fused keep more elements.
    norm = (2 + given.get("memory_norm_elements", 0.0)) * size * hidden / whole
    if selective and given.get("memory_selective_norms"):
        norm /= 2
    if given.get("memory_gathers_inputs"):  # what a norm hands on is gathered, and kept so
        norm += size * (hidden - hidden / whole)
    if not model.norm_bias:  # not fused, a root-mean-square norm works on copies in single precision
        norm += given.get("memory_norm_copies", 0.0) * hidden / whole
    count = 2 if model.hybrid is None else 1
    norms = count * norm + (model.norms - 2) * size * hidden / whole if model.norms > 2 else count * norm
    masks = 2 * hidden / whole if dropout else 0.0
    no_scores = flash or (selective and not given.get("memory_selective_keeps_scores"))
    attending = _attention(model, given, size, tensor, sequence, context, dropout, no_scores)
    drops = selective and given.get("memory_selective_activation")
    more = given.get("memory_inner_elements", 0.0)
    if not model.gated:
        more = given.get("memory_plain_inner_elements", more)
    inner = ((3 if model.gated else 2) + more - (1 if drops else 0)) * size
    feeding = inner * model.intermediate_size / tensor
    routed = _routed(model, size, tensor, expert, expert_tensor, inner, given, whole)
    factor = given.get("memory_activation_factor", 1.0)
    # What large modules keep goes to the host; the rest stays.
    factor *= given.get("memory_offloads_activations", 1.0)
    if selective and "memory_selective_layers" in given:  # so many layers keep their input only
        factor *= 1.0 - given["memory_selective_layers"]
    if selective:
        factor *= given.get("memory_selective_share", 1.0)
    if model.hybrid is not None:
        hybrid = model.hybrid
        channels = hybrid.state_heads * hybrid.state_head_dim
        state = size * (5 * channels + 4 * hybrid.groups * hybrid.state_size) / tensor
        each = hybrid.attention_layers * attending + hybrid.state_layers * state
        each += hybrid.feed_forward_layers * (routed if model.experts else feeding)
        mixed = factor * (norms + each / model.layers)
        return Kept(mixed, mixed, size * hidden / whole)
    base = norms + masks + attending
    return Kept(factor * (base + feeding), factor * (base + routed), size * hidden / whole)


def _attention(
    model: ModelShape,
    given: dict[str, float],
    size: float,
    tensor: int,
    sequence: int,
    context: int,
    dropout: bool,
    no_scores: bool,
) -> float:
    heads = model.attention_heads / tensor
    masked = given.get("memory_mask_elements", 0.0) * size * (sequence + 2)  # whose tokens a token may see
    if model.latent is not None:
        latent = model.latent
        elements = heads * (2 * latent.query_dim + 2 * latent.value_dim)
        elements += 2 * latent.query_rank + 2 * latent.key_value_rank + latent.rotary_dim
    else:
        own = keys = max(1.0, model.key_value_heads / tensor) * model.head_dim
        # A single head is seen by all as it is.
        if given.get("memory_repeats_keys") and keys > model.head_dim:
            keys = heads * model.head_dim
        elements = 2 * heads * model.head_dim + 2 * keys
        if model.head_norms:
            elements += heads * model.head_dim + own
        if context > 1:  # as other ranks sent them: one piece after the other, or all at once
            elements += 2 * keys * ((context - 1) if given.get("memory_gathers_context") else 1)
    held = size * elements + masked
    if no_scores:
        return held + 4 * heads
    return held + heads * sequence / context * (2 * size + (1 if dropout else 0))


def _routed(
    model: ModelShape,
    size: float,
    tensor: int,
    expert: int,
    expert_tensor: int,
    inner: float,
    given: dict[str, float],
    whole: int,
) -> float:
    experts = model.experts
    if experts is None:
        return 0.0
    outside = experts.latent_size or model.hidden_size
    balance = 1.0 + given.get("memory_expert_imbalance", 0.0) * (expert - 1)
    copies = given.get("memory_expert_inputs", 1.0)
    # Tokens that experts get are spread over the tensor ranks too, unless those cut experts.
    each = copies * size * outside + inner * experts.intermediate_size / expert_tensor
    held = experts.per_token * balance * each * expert_tensor / tensor
    # The router's input in single precision, and what comes out.
    held += (4 + size) * model.hidden_size / whole
    return held + inner * experts.shared_intermediate_size / tensor


def layer_kept(work: Workload, recompute: Recompute | None = None) -> Kept:
    """Of a layer of this workload, if it recomputed as `recompute` says."""
    layout, framework = work.layout, work.framework
    return kept(
        work.model,
        frozen(framework),
        work.numerics.activations,
        layout.tensor,
        layout.context,
        layout.expert,
        layout.expert_tensor,
        work.sequence_length,
        layout.sequence_parallel,
        work.dropout,
        framework.flash_attention,
        recompute or layout.recompute,
    )


_FROZEN: dict[int, tuple[Framework, tuple[tuple[str, float], ...]]] = {}


def frozen(framework: Framework) -> tuple[tuple[str, float], ...]:
    """Its coefficients as a key; kept by identity, as they are asked for with each configuration."""
    found = _FROZEN.get(id(framework))
    if found is not None and found[0] is framework:
        return found[1]
    items = tuple(sorted(framework.coefficients.items()))
    if len(_FROZEN) > 4096:
        _FROZEN.clear()
    _FROZEN[id(framework)] = (framework, items)
    return items


def stage_bytes(work: Workload, begin: int, end: int, in_flight: float, tokens: float) -> float:
    """Kept by the layers `begin` to `end`, of which `in_flight` (times micro-batches) are held."""
    layers = end - begin
    if not layers:
        return 0.0
    each, model = layer_kept(work), work.model
    if work.layout.recompute is Recompute.FULL:
        return tokens * in_flight * each.input * work.framework.coefficients.get("memory_inputs_kept", 1.0)
    sparse = model.experts.layers(end) - model.experts.layers(begin) if model.experts else 0
    if model.hybrid is not None:
        sparse = 0
    mean = ((layers - sparse) * each.dense + sparse * each.experts) / layers
    return tokens * in_flight * mean


def recomputed_bytes(work: Workload, begin: int, end: int, tokens: float) -> float:
    """Of one layer, for the time of its backward pass: what it did not keep."""
    mode = work.layout.recompute
    if mode is Recompute.NONE or end == begin:
        return 0.0
    own, whole, experts = layer_kept(work), layer_kept(work, Recompute.NONE), work.model.experts
    if experts is not None and experts.layers(end) > experts.layers(begin):
        return tokens * (whole.experts - (own.input if mode is Recompute.FULL else own.experts))
    return tokens * (whole.dense - (own.input if mode is Recompute.FULL else own.dense))


def head_rows(work: Workload) -> int:
    return counts.vocabulary_rows(work.model, work.layout.tensor, work.framework.padded_vocabulary)
