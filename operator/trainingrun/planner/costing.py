"""What one configuration costs on one kind of node: its bill, its step, whether it fits and how surely.

The cost model counts what a framework allocates; here comes what this product adds around it (snapshots in
memory, the interpreter of a CPU node), and what measurements have taught. The planner's own choice and a
user's are weighed by this same function, so they can be compared. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from trainingrun.planner.cost import fit
from trainingrun.planner.cost.figures import Figures, figures
from trainingrun.planner.cost.memory import fullest, peak_memory
from trainingrun.planner.cost.states import head_rank, stage_parameters
from trainingrun.planner.cost.rates import CPU
from trainingrun.planner.cost.time import step_time
from trainingrun.planner.cost.types import Bill, Machine, Sharding, Step, Workload
from trainingrun.planner.hardware import cpu
from trainingrun.planner.memory import MARGIN_PERCENT, STATE_BUFFERS
from trainingrun.planner.types import ModelShape, TrainingShape
from trainingrun.planner.workloads import workload
from trainingrun.protocol.records import Rung

HOST_BYTES_PER_PROCESS = 2 << 30  # of host memory: interpreter and libraries beside an accelerator


@dataclass(frozen=True)
class Factors:
    """What to multiply predictions with, learned from measurements; 1: as predicted."""

    memory: float = 1.0
    time: float = 1.0

    @property
    def known(self) -> bool:
        return self != NO_FACTORS


NO_FACTORS = Factors()


@dataclass(frozen=True)
class Cost:
    """Bytes are of the fullest process. `needed` includes everything, `margin` stays free beside it."""

    work: Workload
    bill: Bill
    step: Step
    figures: Figures
    snapshots: float  # of a process: in the same memory on CPU nodes, in the host's beside accelerators
    needed: float
    margin: float
    available: float
    host_needed: float  # of a node, beside accelerators
    host_available: float  # 0: not stated, not checked
    p_oom: float
    factors: Factors = NO_FACTORS

    @property
    def device_fits(self) -> bool:
        return self.needed + self.margin <= self.available

    @property
    def fits(self) -> bool:
        return self.device_fits and (not self.host_available or self.host_needed <= self.host_available)


def cost(
    model: ModelShape,
    training: TrainingShape,
    machine: Machine,
    rung: Rung,
    *,
    host_memory_bytes: float = 0,
    factors: Factors = NO_FACTORS,
) -> Cost:
    """`host_memory_bytes`: of a node with accelerators, for the snapshots; 0: not stated."""
    work = workload(model, training, machine, rung)
    on_cores = machine.name == CPU
    bill = _scaled(fullest(_bills(work)), factors.memory)
    if on_cores:
        reserved = cpu.CPU.process_bytes + cpu.CPU.node_bytes // machine.accelerators
        bill = replace(bill, context=float(reserved), slack=0.0)
    step = _slower(step_time(work), factors.time)
    snapshots = STATE_BUFFERS * state_bytes(work, bill)
    here = snapshots if on_cores else 0.0
    needed = bill.allocated + bill.context + here
    available = float(machine.memory_bytes)
    there = max(0.0, host_memory_bytes - machine.accelerators * HOST_BYTES_PER_PROCESS)
    room = replace(machine, memory_bytes=int(max(0.0, available - here)))
    return Cost(
        work=work,
        bill=bill,
        step=step,
        figures=figures(work, step),
        snapshots=snapshots,
        needed=needed,
        margin=available * MARGIN_PERCENT / 100 if on_cores else fit.margin(bill.allocated),
        available=available,
        host_needed=0.0 if on_cores else (snapshots + bill.host) * machine.accelerators,
        host_available=there if host_memory_bytes and not on_cores else 0.0,
        p_oom=fit.p_oom(bill, room, work.framework),
        factors=factors,
    )


def _bills(work: Workload) -> tuple[Bill, ...]:
    """The trainer's data ranks talk once a step: until then the gradients of several micro-batches pile up whole, and
    in a pipeline the weights of a stage stay gathered.
    """
    bills, layout = peak_memory(work), work.layout
    if work.framework.name != "native" or layout.sharding is not Sharding.WEIGHTS:
        return bills
    ranks = sorted({0, head_rank(layout)})
    stages = [stage_parameters(work, rank) for rank in ranks]
    held = []
    for bill, stage in zip(bills, stages, strict=True):
        piled = gathered = 0.0
        if layout.accumulation > 1:
            piled = stage.total * (1 - 1 / layout.shard) - max(stage.layer, stage.root)
        if layout.pipeline > 1:
            gathered = stage.total - min(2, stage.layers) * stage.layer - stage.root
        more = work.numerics.gradients * max(0.0, piled) + work.numerics.weights * max(0.0, gathered)
        held.append(replace(bill, buffers=bill.buffers + more))
    return tuple(held)


def state_bytes(work: Workload, bill: Bill) -> float:
    """What a snapshot of one process holds: trained weights and what the optimizer keeps."""
    if work.numerics.master and work.layout.sharding is not Sharding.WEIGHTS:
        return bill.optimizer  # masters are counted there, and modules' copies are made again
    return bill.weights + bill.optimizer


def recovered(cost: Cost) -> float:
    """Free bytes of the fullest process, after the margin; below zero where it does not fit."""
    return cost.available - cost.needed - cost.margin


def _scaled(bill: Bill, factor: float) -> Bill:
    """States are counted exactly; what measurements correct is what is there for a moment, as far as it goes."""
    if factor == 1.0:
        return bill
    moving = bill.activations + bill.logits + bill.buffers
    wanted = bill.allocated * factor - (bill.allocated - moving)
    if moving <= 0 or wanted <= 0:
        return replace(bill, buffers=max(0.0, bill.buffers + bill.allocated * (factor - 1.0)))
    share = wanted / moving
    return replace(
        bill,
        activations=bill.activations * share,
        logits=bill.logits * share,
        buffers=bill.buffers * share,
    )


def _slower(step: Step, factor: float) -> Step:
    if factor == 1.0 or not math.isfinite(factor):
        return step
    parts = ("compute", "bubble", "tensor", "context", "pipeline", "expert", "data", "optimizer", "other")
    return replace(step, **{part: getattr(step, part) * factor for part in parts})
