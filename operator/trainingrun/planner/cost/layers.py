"""What the layers of a whole model take for one micro-batch on one rank: work, sends, and starting it all.

Seconds of all layers together; `time` gives each stage its share. Shapes come from `compute`, speeds from
`rates`, and `c` is the table of coefficients. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainingrun.planner.cost.collectives import all_reduce, exchange, group_link
from trainingrun.planner.cost.compute import Shapes
from trainingrun.planner.cost.rates import Rates
from trainingrun.planner.cost.types import Recompute, Sharding, Workload

Table = Mapping[str, float]

_BACKWARD_ATTENTION = 2.5  # of the forward pass: scores are computed again, and five products instead of two


def micro_batch_tokens(work: Workload) -> float:
    return work.layout.micro_batch * work.sequence_length / work.layout.context


def _again(work: Workload) -> float:
    """Forward passes that the backward pass repeats."""
    return 1.0 if work.layout.recompute is Recompute.FULL else 0.0


def _passes(work: Workload) -> float:
    """Over the products: forward, gradients of inputs, and gradients of weights where these are trained."""
    return (2.0 if work.numerics.adapters else 3.0) + _again(work)


def _routed(work: Workload) -> float:
    """Tokens that pass this rank's experts, each as often as it is routed, when all experts get the same."""
    experts = work.model.experts
    if experts is None:
        return 0.0
    return micro_batch_tokens(work) * experts.per_token * work.layout.expert_tensor / work.layout.tensor


def _local_experts(work: Workload) -> float:
    return work.model.experts.count / work.layout.expert if work.model.experts else 0.0


def _slowness(sums: Shapes, c: Table) -> float:
    """Of matrix products, against the rate of large ones whose sizes are round."""
    small = c.get("half_rate_hidden", 0.0) / sums.hidden
    return c["matmul"] * (c["ragged"] if sums.ragged else 1.0) * (1.0 + small)


def products(work: Workload, sums: Shapes, rate: Rates, c: Table) -> float:
    """Matrix products. Operations, waves of tiles that are not full, and what they read and write; narrow
    formats are cast to.
    """
    tokens, size, memory = micro_batch_tokens(work), work.numerics.activations, rate.memory
    matmul = _slowness(sums, c)
    held = sums.weights
    through = tokens * sums.through
    seconds = (2.0 * tokens * sums.weights * matmul + c["wave"] * sums.through) / rate.matmul
    moved = c["product_bytes"] * size * (sums.weights + through)
    cast = through
    if work.model.experts is not None:
        routed, weights = _routed(work), _local_experts(work) * sums.expert_weights
        seconds += 2.0 * routed * sums.expert_weights * matmul / rate.grouped
        moved += c["product_bytes"] * size * (weights + routed * sums.expert_through)
        cast += weights + routed * sums.expert_through
        held += weights
    if rate.narrow:
        moved += c["cast_bytes"] * cast
    passes = _passes(work)
    seconds = (seconds + moved / memory) * passes
    if not work.numerics.adapters:  # gradients of weights are added to what earlier micro-batches left
        seconds += c["accumulate_bytes"] * held / memory
    if work.numerics.weights < 1.0:  # quantised weights are widened before each use
        seconds += c["widen_bytes"] * held / memory * passes
    return seconds


def attention(work: Workload, sums: Shapes, rate: Rates, c: Table) -> float:
    """Half of the square with flash attention; all of it, and its scores through memory, without."""
    tokens, sequence = micro_batch_tokens(work), work.sequence_length
    if work.framework.flash_attention:
        causal = 0.5 * sequence
        window = min(causal, work.model.sliding_window)
        looked = 2.0 * tokens * (sums.attention * causal + sums.windowed * window)
        return looked / rate.attention * c["attention"] * (1.0 + _BACKWARD_ATTENTION + _again(work))
    looked = 2.0 * tokens * (sums.attention + sums.windowed) * sequence
    once = looked / rate.half * c["attention_whole"] * (1.0 if sums.aligned else c["misaligned"])
    once += c["score_bytes"] * tokens * sequence * sums.score_heads / rate.memory
    return once * (_passes(work) + (1.0 if work.layout.recompute is Recompute.SELECTIVE else 0.0))


def elements(work: Workload, sums: Shapes, rate: Rates, c: Table) -> float:
    """What passes through memory element by element: norms, residuals, activation functions, tokens on their
    way to experts.
    """
    shared = work.layout.tensor if work.layout.sequence_parallel else 1
    inner = sums.whole_elements / shared + sums.cut_elements + c["scan_passes"] * sums.scan
    passed = micro_batch_tokens(work) * inner + c["permute_passes"] * _routed(work) * sums.routed
    return c["element_passes"] * work.numerics.activations * passed / rate.memory * (3.0 + _again(work))


def head(work: Workload, sums: Shapes, rate: Rates, c: Table) -> float:
    """Logits and loss, forward and backward; once more for each later token that is predicted."""
    logits = micro_batch_tokens(work) * sums.vocabulary
    matmul = _slowness(sums, c)
    loss = c["loss_bytes_fused"] if work.framework.fused_loss else c["loss_bytes"]
    once = 6.0 * logits * sums.hidden / rate.half * matmul + loss * logits / rate.memory
    return once * (1.0 + sums.extra_heads)


def sends(work: Workload, sums: Shapes, c: Table) -> tuple[float, float, float]:
    """Exposed seconds of tensor, context and expert ranks."""
    layout, machine, size = work.layout, work.machine, work.numerics.activations
    tokens, again = micro_batch_tokens(work), _again(work)
    tensor = context = expert = 0.0
    if layout.tensor > 1:
        one = all_reduce(tokens * sums.hidden * size, layout.tensor, group_link(machine, 1, layout.tensor))
        tensor = c["tensor_exposed"] * 2.0 * sums.layers * (2.0 + again) * one
    if layout.context > 1:
        link = group_link(machine, layout.tensor, layout.context)
        start = link.half_size_bytes / link.bytes_per_second + link.latency_seconds
        one = tokens * sums.key_values * size / link.bytes_per_second + sums.attention_layers * start
        context = c["context_exposed"] * (layout.context - 1) * one * (3.0 + again)
    if sums.expert_layers and layout.expert > 1:
        message = _routed(work) * sums.routed / sums.expert_layers * size
        one = exchange(message, layout.expert, machine, layout.expert_tensor, c["expert_far"])
        expert = c["expert_exposed"] * sums.expert_layers * one * (4.0 + 2.0 * again)
    return tensor, context, expert


def starting(work: Workload, sums: Shapes, rate: Rates, c: Table) -> float:
    """The host starts each operation, forward and backward, whatever its size."""
    model, layout, framework = work.model, work.layout, work.framework
    layer = c["start_layer"]
    attending = 0.0
    if layout.tensor > 1:
        layer += c["start_tensor"]
    if rate.narrow:
        layer += c["start_narrow"]
    if work.numerics.adapters:
        layer += c["start_adapters"]
    if layout.sharding is Sharding.WEIGHTS:
        layer += c["start_shards"]
    if framework.coefficients.get("memory_offloads_activations"):
        layer += c["start_offload"]
    if layout.context > 1:
        attending += c["start_context"]
    if not framework.flash_attention:
        attending += c["start_scores"]
    if model.latent is not None:
        attending += c["start_latent"]
    if model.head_norms:
        attending += c["start_head_norms"]
    seconds = layer * sums.layers + attending * sums.attention_layers
    if model.experts is not None:
        each = _local_experts(work) if framework.coefficients.get("memory_experts_one_by_one") else 1.0
        seconds += (c["start_experts"] + c["start_expert"] * each) * sums.expert_layers
    return seconds * rate.host * (1.0 + _again(work) / 3.0)
