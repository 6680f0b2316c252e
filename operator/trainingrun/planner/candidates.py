"""The cuts that a model, a batch and the nodes allow, in the order in which the search tries them, each with
its bill.

Order: fewest nodes for one copy first (then a lost node leaves a whole copy, and every size is usable), then
least model parallelism. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainingrun.planner import rules, zero
from trainingrun.planner.layout import Cut
from trainingrun.planner.memory import fits, memory_bill
from trainingrun.planner.types import MemoryBill, ModelShape, NodeShape, TrainingShape


@dataclass(frozen=True)
class Candidate:
    """A cut of which one copy fills `units` nodes."""

    cut: Cut
    units: int
    bill: MemoryBill  # the least that it can do with
    fits: bool
    micro_batch: int  # of the bill


@dataclass(frozen=True)
class Split:
    """How the global batch is spread over `data` ranks."""

    micro_batch: int
    accumulation: int
    padding: int  # sequences that weigh nothing

    @property
    def per_rank(self) -> int:
        return self.micro_batch * self.accumulation


def candidates(
    model: ModelShape, training: TrainingShape, node: NodeShape, *, max_units: int, min_units: int = 1
) -> Iterator[Candidate]:
    """Every allowed cut of at most `max_units` nodes for a copy, in order of preference. Pins are
    respected. `min_units`: of the engine DeepSpeed, whose only copy fills all nodes.
    """
    if training.engine == zero.DEEPSPEED:
        for units in range(min_units, max_units + 1):
            weighed = (
                weigh(model, training, node, cut, units) for cut in zero.cuts(training, node.processes, units)
            )
            yield from (candidate for candidate in weighed if candidate is not None)
        return
    processes = node.processes
    degrees = pairs(model, training, processes)
    for units in range(1, max_units + 1):
        for tensor, pipeline in sorted(degrees, key=lambda tp: (max(units, tp[1]), tp[0] * tp[1], tp[1])):
            cut = rules.cut_of(training, processes, units, tensor=tensor, pipeline=pipeline)
            if cut is None:
                continue
            candidate = weigh(model, training, node, cut, units)
            if candidate is not None:
                yield candidate


def pairs(model: ModelShape, training: TrainingShape, processes: int) -> list[tuple[int, int]]:
    """(tensor, pipeline) that the model and a node of `processes` allow, and that no pin forbids."""
    tensors = _allowed(
        "tensor", rules.tensor_degrees(model, training, processes // training.context), training
    )
    pipelines = _allowed("pipeline", rules.pipeline_degrees(model, training), training)
    return [(tensor, pipeline) for tensor in tensors for pipeline in pipelines]


def weigh(
    model: ModelShape, training: TrainingShape, node: NodeShape, cut: Cut, units: int
) -> Candidate | None:
    """The cheapest way to run one copy, or None when the batch is too small for it.

    One sequence a micro-batch needs the least for activations; the whole share in one micro-batch saves the
    gradients that pile up in between. Any micro-batch in between needs more than the first.
    """
    bills: list[tuple[MemoryBill, int]] = []
    for size in {1, -(-training.global_batch_sequences // cut.shard)}:
        found = split(training, cut, 1, micro_batch=size)
        if found is not None:
            bill = memory_bill(
                model,
                training,
                node,
                cut,
                replicate=1 if cut.zero else 2,  # the most that any size of the path needs
                micro_batch=size,
                accumulation=found.accumulation,
            )
            bills.append((bill, size))
    if not bills:
        return None
    bill, size = min(bills, key=lambda one: (one[0].total, one[1]))
    return Candidate(cut, units, bill, fits(bill, node), size)


def split(training: TrainingShape, cut: Cut, replicate: int, *, micro_batch: int) -> Split | None:
    """None when ranks would have nothing to do, or a pipeline too few micro-batches to fill."""
    data, batch = replicate * cut.shard, training.global_batch_sequences
    if data > batch:
        return None
    accumulation = -(-batch // (data * micro_batch))
    if accumulation < cut.pipeline:
        return None
    if cut.pipeline > 1 and cut.schedule == "Interleaved1F1B":
        # Micro-batches take turns in rounds of one for each rank.
        accumulation = -(-accumulation // cut.pipeline) * cut.pipeline
    return Split(micro_batch, accumulation, padding=data * micro_batch * accumulation - batch)


def micro_batches(training: TrainingShape, cut: Cut, replicate: int) -> list[int]:
    """Micro-batches worth a look: for each accumulation the smallest that does it. Ascending."""
    share = -(-training.global_batch_sequences // (replicate * cut.shard))
    found, size = [], 1
    while size <= share:
        found.append(size)
        accumulation = -(-share // size)
        if accumulation == 1:
            break
        size = -(-share // (accumulation - 1))
    return found


def _allowed(axis: str, degrees: list[int], training: TrainingShape) -> list[int]:
    pinned = training.pinned.get(axis)
    return degrees if pinned is None else [degree for degree in degrees if degree == pinned]
