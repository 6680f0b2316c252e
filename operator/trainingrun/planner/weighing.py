"""What one configuration costs on one kind of node: memory, time, whether it fits and how surely.

The planner's own choice, its neighbours and what a user asks for are weighed by this one function, so they can be
compared. It decides nothing, and corrects by measurements only what it is told to. Pure; called by the CLI.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from trainingrun.planner.copies import copies
from trainingrun.planner.cost.fit import USUAL_SPREAD
from trainingrun.planner.cost.frameworks import framework
from trainingrun.planner.hardware import gpus
from trainingrun.planner.inputs import MATMUL_SHARE
from trainingrun.planner.layout import Cut
from trainingrun.planner.memory import available_bytes, fits, host_available_bytes, margin_bytes, memory_bill
from trainingrun.planner.time import StepTime, predict
from trainingrun.planner.types import MemoryBill, ModelShape, NodeShape, PlannedRung, TrainingShape
from trainingrun.protocol.records import Rung

_FRAMEWORKS = {"Native": "native", "DeepSpeed": "deepspeed"}
_MOVING = ("activations", "logits", "buffers")  # what a measurement corrects: states are counted exactly


@dataclass(frozen=True)
class Factors:
    """What to multiply predictions with, as measurements teach; 1: as predicted."""

    memory: float = 1.0
    time: float = 1.0


NO_FACTORS = Factors()


@dataclass(frozen=True)
class Weighed:
    """Bytes are of the fullest process."""

    rung: Rung
    memory: MemoryBill
    available: int
    margin: int  # of `available`, that stays free
    host_needed: int  # of a node, for snapshots beside its accelerators
    host_available: int  # 0: not stated, not checked
    fits: bool
    p_oom: float  # how likely it runs out of memory, from how far predictions were off
    times: StepTime
    step_seconds: float
    tokens: int  # of a step
    copies_reason: str  # how many copies of the state there are, and why

    @property
    def free(self) -> int:
        """Bytes that are left after the margin; below zero where it does not fit."""
        return self.available - self.margin - self.memory.total

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.step_seconds


def weigh(
    model: ModelShape,
    training: TrainingShape,
    node: NodeShape,
    rung: Rung,
    factors: Factors = NO_FACTORS,
) -> Weighed:
    cut = Cut(rung.pipeline, rung.shard, rung.tensor, rung.context, rung.schedule, rung.zero_stage)
    training = as_chosen(training, rung)
    bill = memory_bill(
        model,
        training,
        node,
        cut,
        replicate=rung.replicate,
        micro_batch=rung.micro_batch,
        accumulation=rung.accumulation,
    )
    times = predict(
        model,
        training,
        node,
        cut,
        replicate=rung.replicate,
        micro_batch=rung.micro_batch,
        accumulation=rung.accumulation,
    )
    nodes = rung.world // node.processes
    bill = corrected_bill(bill, factors.memory)
    kept = copies(model, training, node, cut, replicate=rung.replicate, nodes=nodes, bill=bill)
    bill = kept.bill
    return Weighed(
        rung=replace(rung, state_copies=kept.count, buddies=kept.buddies),
        memory=bill,
        available=available_bytes(node),
        margin=margin_bytes(node),
        host_needed=bill.host * node.processes,
        host_available=max(0, host_available_bytes(node)) if node.host_memory_bytes else 0,
        fits=fits(bill, node),
        p_oom=p_oom(bill, available_bytes(node), rung.engine),
        times=times,
        step_seconds=times.total * factors.time,
        tokens=training.global_batch_sequences * training.sequence_length,
        copies_reason=kept.reason,
    )


def as_chosen(training: TrainingShape, rung: Rung) -> TrainingShape:
    """What is computed twice, and context, are the plan's to say."""
    return replace(
        training,
        activation_checkpointing=rung.activation_checkpointing,
        pinned={**training.pinned, "context": rung.context},
    )


def allocated(bill: MemoryBill) -> int:
    """What the allocator hands out: without what is reserved beside it, and without snapshots."""
    return bill.total - _beside(bill)


def _beside(bill: MemoryBill) -> int:
    return bill.reserved + bill.snapshots + bill.buddies


def corrected_bill(bill: MemoryBill, factor: float) -> MemoryBill:
    """`factor` is of what is allocated. The exact parts stay; the others make up for the difference, and never
    become less than nothing.
    """
    if factor == 1.0:
        return bill
    moving = sum(getattr(bill, part) for part in _MOVING)
    more = round(allocated(bill) * (factor - 1.0))
    if moving <= 0:
        return replace(bill, buffers=max(0, more))
    share = max(0.0, (moving + more) / moving)
    return replace(bill, **{part: round(getattr(bill, part) * share) for part in _MOVING})


def corrected(planned: PlannedRung, factors: Factors) -> PlannedRung:
    """The same plan with predictions as measurements correct them."""
    if factors == NO_FACTORS:
        return planned
    return replace(
        planned,
        memory=corrected_bill(planned.memory, factors.memory),
        step_seconds=planned.step_seconds * factors.time,
        tokens_per_second=planned.tokens_per_second / factors.time,
        flops_utilisation=planned.flops_utilisation / factors.time,
    )


def in_predicted_bytes(node: NodeShape, factor: float) -> NodeShape:
    """The node as the planner should see it, where what it predicts takes `factor` times as much in truth. Less than
    predicted makes no plan bolder: not every rank may have been at its fullest.
    """
    if factor <= 1.0:
        return node
    reserved = node.reserved_bytes_per_process * node.processes
    return replace(node, memory_bytes=int(max(0, node.memory_bytes - reserved) / factor) + reserved)


def p_oom(bill: MemoryBill, available: int, engine: str = "Native") -> float:
    """The share of such predictions whose peak would be beyond what there is."""
    room, wanted = available - _beside(bill), allocated(bill)
    if room <= 0:
        return 1.0
    if wanted <= 0:
        return 0.0
    known = framework(_FRAMEWORKS[engine]).coefficients
    distance = math.log(room / wanted) / known.get("memory_spread", USUAL_SPREAD)
    return 0.5 * math.erfc(distance / math.sqrt(2.0))


def peak_flops(node: NodeShape, precision_bytes: int) -> float:
    """Of one process by the data sheet, in the format of the matrix products; what utilisation is a share of."""
    entry = gpus.find(node.name)
    if node.device == "cpu":
        return node.flops_per_second
    if entry is None:
        return node.flops_per_second / MATMUL_SHARE
    return {2: entry.bf16_flops, 8: entry.fp64_flops}.get(precision_bytes, entry.fp32_flops)


def price_per_billion_tokens(price_per_hour: float, nodes: int, tokens_per_second: float) -> float:
    """`price_per_hour` of a node."""
    return price_per_hour * nodes * 1e9 / tokens_per_second / 3600


def parts_of(times: StepTime) -> dict[str, float]:
    """Seconds of a step by part. "starting": the host starts operations and batches, and computing does not hide it."""
    named = {
        "compute": times.compute,
        "bubble": times.bubble_seconds,
        "communication": times.communication,
        "optimizer": times.optimizer,
    }
    starting = times.starting
    return {**named, "starting": starting} if starting > 1e-9 * times.total else named


PARTS = tuple(field.name for field in fields(MemoryBill) if field.name != "host")
"""Parts of a bill that are in the memory of the process."""
