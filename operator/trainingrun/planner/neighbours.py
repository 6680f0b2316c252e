"""What the plans next to the chosen one would cost, or why they are not possible. For `explain`; decides
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainingrun.planner import rules, zero
from trainingrun.planner.candidates import Split, split, weigh
from trainingrun.planner.copies import copies
from trainingrun.planner.layout import Cut
from trainingrun.planner.memory import available_bytes, fits, margin_bytes, memory_bill
from trainingrun.planner.search import rung_of
from trainingrun.planner.text import human_bytes
from trainingrun.planner.time import predict
from trainingrun.planner.types import Inventory, MemoryBill, ModelShape, PlannedRung, TrainingShape
from trainingrun.protocol.records import Rung


@dataclass(frozen=True)
class Neighbour:
    """One step away from the chosen plan. `why_not` is empty when it would work; the figures are 0 when it
    cannot be.
    """

    name: str
    why_not: str
    memory_bytes: int = 0  # of the fullest process
    step_seconds: float = 0.0
    state_copies: int = 0


def neighbours(
    model: ModelShape, training: TrainingShape, inventory: Inventory, planned: PlannedRung
) -> tuple[Neighbour, ...]:
    """Twice and half the tensor and pipeline degrees, other shardings, twice and half the micro-batch; in
    this order.
    """
    rung = planned.rung
    if rung.zero_stage:
        return _of_zero(model, training, inventory, rung)
    pairs = [(tensor, rung.pipeline) for tensor in _twice_and_half(rung.tensor)]
    pairs += [(rung.tensor, pipeline) for pipeline in _twice_and_half(rung.pipeline)]
    found = [
        _recut(model, training, inventory, rung.nodes, tensor=tensor, pipeline=pipeline)
        for tensor, pipeline in pairs
    ]
    world = rung.data
    for shard in sorted({1, world} - {rung.shard}):
        cut = Cut(rung.pipeline, shard, rung.tensor, rung.context, rung.schedule)
        name = "no sharding" if shard == 1 else f"shard {shard} (over all nodes)"
        found.append(_batched(model, training, inventory, name, cut, world // shard, rung.micro_batch))
    for size in _twice_and_half(rung.micro_batch):
        cut = Cut(rung.pipeline, rung.shard, rung.tensor, rung.context, rung.schedule)
        name = f"micro-batch {size}"
        found.append(_batched(model, training, inventory, name, cut, rung.replicate, size))
    return tuple(found)


def _of_zero(
    model: ModelShape, training: TrainingShape, inventory: Inventory, rung: Rung
) -> tuple[Neighbour, ...]:
    """The other stages, and twice and half the micro-batch."""
    cuts = [Cut(1, rung.shard, 1, zero=stage) for stage in zero.STAGES]
    stages = [
        _batched(model, training, inventory, f"ZeRO {cut.zero}", cut, 1, rung.micro_batch)
        for cut in cuts
        if cut.zero != rung.zero_stage and (cut.zero == 3 or training.offload != "OptimizerAndParameters")
    ]
    own = cuts[rung.zero_stage - 1]
    sizes = [
        _batched(model, training, inventory, f"micro-batch {size}", own, 1, size)
        for size in _twice_and_half(rung.micro_batch)
    ]
    return (*stages, *sizes)


def _twice_and_half(degree: int) -> list[int]:
    return [degree * 2] + ([degree // 2] if degree % 2 == 0 else [])


def _recut(
    model: ModelShape,
    training: TrainingShape,
    inventory: Inventory,
    nodes: int,
    *,
    tensor: int,
    pipeline: int,
) -> Neighbour:
    name = f"tensor {tensor}, pipeline {pipeline}"
    processes = inventory.node.processes
    why_not = rules.refusal(model, training, processes, tensor=tensor, pipeline=pipeline)
    if why_not:
        return Neighbour(name, why_not)
    cuts = [
        (units, cut)
        for units in range(1, nodes + 1)
        if nodes % units == 0
        and (cut := rules.cut_of(training, processes, units, tensor=tensor, pipeline=pipeline))
    ]
    if not cuts:
        return Neighbour(name, f"does not divide {nodes} nodes x {processes} processes")
    weighed = [one for units, cut in cuts if (one := weigh(model, training, inventory.node, cut, units))]
    if not weighed:
        return Neighbour(name, "the global batch is too small for its data ranks and stages")
    candidate = next((one for one in weighed if one.fits), weighed[-1])
    if not candidate.fits:
        return _too_big(name, candidate.bill, inventory)
    replicate = candidate.cut.copies_on(nodes, processes)
    if split(training, candidate.cut, replicate, micro_batch=1) is None:
        return Neighbour(name, "the global batch is too small for its data ranks and stages")
    planned = rung_of(model, training, inventory, candidate, nodes)
    return Neighbour(name, "", planned.memory.total, planned.step_seconds, planned.rung.state_copies)


def _batched(
    model: ModelShape,
    training: TrainingShape,
    inventory: Inventory,
    name: str,
    cut: Cut,
    replicate: int,
    micro_batch: int,
) -> Neighbour:
    node = inventory.node
    batch: Split | None = split(training, cut, replicate, micro_batch=micro_batch)
    if batch is None:
        return Neighbour(name, "the global batch is too small for it")
    bill = memory_bill(
        model,
        training,
        node,
        cut,
        replicate=replicate,
        micro_batch=micro_batch,
        accumulation=batch.accumulation,
    )
    if not fits(bill, node):
        return _too_big(name, bill, inventory)
    times = predict(
        model,
        training,
        node,
        cut,
        replicate=replicate,
        micro_batch=micro_batch,
        accumulation=batch.accumulation,
    )
    nodes = -(-replicate * cut.processes // node.processes)
    kept = copies(model, training, node, cut, replicate=replicate, nodes=nodes, bill=bill)
    return Neighbour(name, "", kept.bill.total, times.total, kept.count)


def _too_big(name: str, bill: MemoryBill, inventory: Inventory) -> Neighbour:
    node = inventory.node
    usable = available_bytes(node) - margin_bytes(node)
    if bill.total > usable:
        why = f"needs {human_bytes(bill.total)} a process, {human_bytes(usable)} are there"
    else:
        why = f"its snapshots need {human_bytes(bill.host * node.processes)} of the host's memory"
    return Neighbour(name, why, memory_bytes=bill.total)
