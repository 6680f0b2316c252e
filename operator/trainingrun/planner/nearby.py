"""What the configurations next to a plan would cost, or why they are not possible. For `explain`; decides nothing.

Each differs from the plan in one thing: one axis twice or half as large (data ranks make up for it), who shares
the state, the micro-batch, the pipeline's schedule, what is computed twice. All are weighed as the plan itself is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainingrun.planner.errors import PlanError
from trainingrun.planner.pinned import MODES, Given, completed
from trainingrun.planner.text import human_bytes
from trainingrun.planner.types import ModelShape, NodeShape, TrainingShape
from trainingrun.planner.weighing import NO_FACTORS, Factors, Weighed, weigh
from trainingrun.protocol.records import STAGES_PER_RANK, Rung


@dataclass(frozen=True)
class Nearby:
    """One step away from the plan. `weighed` is None where it cannot be; `why_not` is empty where it would do."""

    name: str
    why_not: str
    weighed: Weighed | None = None


def nearby(
    model: ModelShape,
    training: TrainingShape,
    node: NodeShape,
    chosen: Rung,
    factors: Factors = NO_FACTORS,
) -> tuple[Nearby, ...]:
    """In a fixed order; at most about a dozen. On the nodes that the plan uses, where it leaves some idle, or else on
    all of them.
    """
    if chosen.zero_stage:
        steps = [
            (f"ZeRO {stage}", replace(chosen, zero_stage=stage))
            for stage in (1, 2, 3)
            if stage != chosen.zero_stage and (stage == 3 or training.offload != "OptimizerAndParameters")
        ]
        found = [_priced(name, model, training, node, rung, factors) for name, rung in steps]
        sizes = _micro_batches(chosen)
    else:
        found = []
        sizes = [
            *_axes(chosen),
            *_shardings(chosen),
            *_micro_batches(chosen),
            *_schedules(chosen),
            *_recomputed(chosen),
        ]
    for name, given in sizes:
        found.append(_given(name, model, training, node, chosen, given, factors))
    return tuple(found)


def _axes(chosen: Rung) -> list[tuple[str, Given]]:
    found = [(f"tensor {degree}", Given(tensor=degree)) for degree in _twice_and_half(chosen.tensor)]
    found += [(f"pipeline {degree}", Given(pipeline=degree)) for degree in _twice_and_half(chosen.pipeline)]
    if chosen.context > 1:
        found += [(f"context {degree}", Given(context=degree)) for degree in _twice_and_half(chosen.context)]
    return found


def _shardings(chosen: Rung) -> list[tuple[str, Given]]:
    found = []
    for shard in sorted({1, chosen.data} - {chosen.shard}):
        name = "no sharding" if shard == 1 else f"shard {shard} (over all nodes)"
        found.append((name, Given(shard=shard)))
    return found


def _micro_batches(chosen: Rung) -> list[tuple[str, Given]]:
    return [(f"micro-batch {size}", Given(micro_batch=size)) for size in _twice_and_half(chosen.micro_batch)]


def _schedules(chosen: Rung) -> list[tuple[str, Given]]:
    others = [name for name in STAGES_PER_RANK if name != chosen.schedule and chosen.pipeline > 1]
    return [(f"schedule {name}", Given(schedule=name)) for name in others]


def _recomputed(chosen: Rung) -> list[tuple[str, Given]]:
    return [
        (f"recompute {mode}", Given(recompute=mode))
        for mode in MODES
        if mode != chosen.activation_checkpointing
    ]


def _twice_and_half(degree: int) -> list[int]:
    return [degree * 2] + ([degree // 2] if degree % 2 == 0 else [])


def _given(
    name: str,
    model: ModelShape,
    training: TrainingShape,
    node: NodeShape,
    chosen: Rung,
    given: Given,
    factors: Factors,
) -> Nearby:
    why = ""
    for nodes in sorted({chosen.world // node.processes, chosen.nodes}):
        try:
            trained, rung = completed(model, training, given, replace(chosen, nodes=nodes), node.processes)
        except PlanError as error:
            why = why or error.message
            continue
        where = f" on all {nodes} nodes" if nodes * node.processes != chosen.world else ""
        return _priced(name + where, model, trained, node, rung, factors)
    return Nearby(name, why)


def _priced(
    name: str,
    model: ModelShape,
    training: TrainingShape,
    node: NodeShape,
    rung: Rung,
    factors: Factors,
) -> Nearby:
    found = weigh(model, training, node, rung, factors)
    return Nearby(name, why_not(found), found)


def why_not(weighed: Weighed) -> str:
    """The whole comparison, or an empty string where it fits."""
    if weighed.fits:
        return ""
    if weighed.free < 0:
        return (
            f"needs {human_bytes(weighed.memory.total)} + {human_bytes(weighed.margin)} kept free "
            f"= {human_bytes(weighed.memory.total + weighed.margin)} a process, "
            f"{human_bytes(weighed.available)} are there"
        )
    return (
        f"its snapshots need {human_bytes(weighed.host_needed)} of the host's memory, "
        f"{human_bytes(weighed.host_available)} are there"
    )
