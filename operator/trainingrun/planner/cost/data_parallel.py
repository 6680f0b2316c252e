"""What data ranks do for each other between and during steps, and the optimizer's pass.

Gradients are summed once a step (scattered, where the optimizer's state is shared), and weights gathered
once; ranks that share gradients scatter them for each micro-batch, and those that share weights gather those
twice more. Compute hides sends up to a share of its own time; what hides still slows it a little. Context
ranks hold copies of the weights as data ranks do. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

from trainingrun.planner.cost.collectives import all_reduce, gather, group_link
from trainingrun.planner.cost.compute import rank_parameters
from trainingrun.planner.cost.types import Sharding, Workload

_UPDATE_BYTES = 14.0  # beside moments: master weights in and out, gradients, weights for the modules


def between_steps(
    work: Workload, unit: float, c: Mapping[str, float], memory: float, messages: float
) -> tuple[float, float]:
    """(exposed seconds of data ranks, seconds of the optimizer) in a step. `unit`: of one micro-batch;
    `messages`: how many blocks weights travel in.
    """
    layout, numerics, machine, model = work.layout, work.numerics, work.machine, work.model
    dense, expert, table, head = rank_parameters(model, layout.tensor, layout.expert_tensor)
    pipeline = layout.pipeline
    dense = dense / pipeline + table + (head if pipeline == 1 else 0.0)
    experts = model.experts.count / layout.expert * expert / pipeline if model.experts else 0.0
    if numerics.adapters:
        share = 1.0 / (layout.tensor * pipeline)
        trained_dense, trained_experts = numerics.adapters * share, 0.0
    else:
        trained_dense, trained_experts = dense, experts

    ranks = layout.data * layout.context
    expert_ranks = max(1, ranks * layout.tensor // (layout.expert * layout.expert_tensor))
    sharing = layout.sharding
    shard = min(max(1, layout.shard), ranks) if sharing is not Sharding.NONE else 1
    expert_shard = min(shard, expert_ranks)
    weight, gradient = numerics.weights, numerics.gradients
    micro_batches = layout.accumulation
    total = 0.0
    rounds = micro_batches if sharing in (Sharding.GRADIENTS, Sharding.WEIGHTS) else 1
    gathers = (2 * micro_batches) if sharing is Sharding.WEIGHTS else 1
    for held, trained, members, stride, parts in (
        (dense, trained_dense, ranks, layout.tensor, shard),
        (experts, trained_experts, expert_ranks, layout.expert * layout.expert_tensor, expert_shard),
    ):
        if members <= 1 or not held:
            continue
        if parts <= 1:
            total += all_reduce(trained * gradient, members, group_link(machine, stride, members))
            continue
        link = group_link(machine, stride, parts)
        total += rounds * messages * gather(trained * gradient / messages, parts, link)
        moved = held if sharing is Sharding.WEIGHTS else trained
        total += gathers * messages * gather(moved * weight / messages, parts, link)
        if parts < members:
            copies = members // parts
            total += all_reduce(
                trained * gradient / parts, copies, group_link(machine, stride * parts, copies)
            )
        total += c["shard_member"] * parts
    total *= c["data_cost"]
    hidden = 0.0
    if work.framework.overlaps_data:
        hidden = c["data_hidden"] * unit * rounds
    over = total - hidden
    exposed = 0.5 * (over + sqrt(over * over + (0.1 * total) ** 2)) + c["data_contention"] * min(
        total, hidden
    )

    own = trained_dense / shard + trained_experts / expert_shard
    per_element = numerics.moments * 2.0 + _UPDATE_BYTES
    update = c["update_passes"] * own * per_element / memory
    if layout.offload_optimizer:
        update += own * (numerics.gradients + numerics.weights) / machine.host_link.bytes_per_second
        update += own * per_element / c["host_memory"]
    if layout.offload_weights:
        update += gathers * (dense + experts) * weight / shard / machine.host_link.bytes_per_second
    return exposed, update
