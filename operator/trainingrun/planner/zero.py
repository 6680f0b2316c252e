"""What the engine DeepSpeed needs: cuts by data only, at one size, and the memory and traffic of each stage of ZeRO.

P parameters over d ranks, w bytes of a weight as modules compute with it, 4 of a master, of a gradient and of each of
two moments; what DeepSpeed's buffers hold, as its code makes them:

    ZeRO   weights           gradients        moments
    1      w P + 4 P/d       (4 or 6) P       8 P/d      gradients are whole; in BF16 those of modules stay beside
    2      w P + 4 P/d       8 P/d            8 P/d      reduced bucket by bucket, with each micro-batch
    3      4 P/d (+ w P/d)   8 P/d            8 P/d      in FP32 the master is what is gathered from

Offload moves masters, moments and parts of gradients to the host, and with parameters all that is cut; without
accelerators that is the same memory. Pure; called by candidates, memory and time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainingrun.planner.errors import PlanInputError
from trainingrun.planner.layout import Cut
from trainingrun.planner.parameters import StageParameters
from trainingrun.planner.types import Inventory, TrainingShape

DEEPSPEED = "DeepSpeed"
STAGES = (1, 2, 3)
BUCKET_ELEMENTS = 8 << 20  # as `trainer.deepspeed_engine.settings` has it
_GRADIENT, _MOMENTS = 4, 8  # bytes


def check(training: TrainingShape, inventory: Inventory) -> None:
    """Raises PlanInputError for a run of this engine that has more than one size."""
    if training.engine == DEEPSPEED and inventory.min_nodes != inventory.max_nodes:
        raise PlanInputError(
            "spec.scale.minNodes",
            inventory.min_nodes,
            f"a run of the engine DeepSpeed has one size, but {inventory.min_nodes} is not spec.scale.maxNodes "
            f"({inventory.max_nodes})",
            f"set both to {inventory.min_nodes} or {inventory.max_nodes}, or use spec.parallelism.engine: Native",
        )


def cuts(training: TrainingShape, processes: int, units: int) -> Iterator[Cut]:
    """The stages of ZeRO over all ranks of `units` nodes, the simplest first."""
    stages = STAGES if training.zero_stage is None else (training.zero_stage,)
    for stage in stages:
        if training.offload != "OptimizerAndParameters" or stage == 3:
            yield Cut(1, units * processes, 1, zero=stage)


@dataclass(frozen=True)
class Bytes:
    """Of one rank."""

    weights: int
    gradients: int
    moments: int
    held: int  # buckets, and what ZeRO 3 gathers
    host: int  # what offload has taken from the others


def bytes_of(training: TrainingShape, parameters: StageParameters, cut: Cut, *, host: bool) -> Bytes:
    """`host`: there is memory beside that of the ranks' devices."""
    whole, own = parameters.total, -(-parameters.total // cut.shard)
    size, small = training.parameter_bytes, training.activation_bytes
    offload = training.offload if host else "None"
    masters, moments, parts = size * own, _MOMENTS * own, 2 * _GRADIENT * own
    buckets = 2 * _GRADIENT * min(whole, BUCKET_ELEMENTS)  # the bucket, and the message made of it
    if cut.zero == 3:
        computed = small * own if training.mixed or offload != "None" else 0
        gathered = max(parameters.layer, parameters.root) + BUCKET_ELEMENTS
        held = buckets + small * min(whole, gathered)
        # Before the first step each rank has the whole weights, until they are cut; then the rest comes.
        held = max(held, small * whole - parts - (moments if offload == "None" else 0))
    else:
        computed, held = small * whole, buckets
    piled = (size + (small if training.mixed else 0)) * whole if cut.zero == 1 else 0
    if offload == "None":
        return Bytes(computed + masters, piled or parts, moments, held, 0)
    moved = masters + moments + parts
    if offload == "OptimizerAndParameters":
        return Bytes(0, piled, 0, held, moved + computed)
    return Bytes(computed, piled, 0, held, moved)


def traffic(
    training: TrainingShape, parameters: StageParameters, cut: Cut, accumulation: int
) -> tuple[float, int]:
    """(bytes that a ring of all ranks moves in a step, in units of one gather; messages). An all-reduce is two."""
    gradients = 2.0 * _GRADIENT * parameters.total
    weights = float(training.activation_bytes * parameters.total)
    buckets = -(-parameters.total // BUCKET_ELEMENTS)
    if cut.zero == 1:
        return gradients + weights, 3 * buckets
    if cut.zero == 2:
        return accumulation * gradients + weights, (2 * accumulation + 1) * buckets
    layers = parameters.layers + 1
    return accumulation * (gradients + 2 * weights), accumulation * (2 * buckets + 2 * layers)
