"""What the sizes of a run took in truth, as its epochs report it, and the measurements that follow for the planner.

Each epoch record tells what the epoch before it measured, so the records are the source; status keeps a few numbers
for each of the newest sizes, since records are folded once.
Pure; used by `folding` and `counters`, and by the CLI for exports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from trainingrun.api.status import MEASURED_SIZES
from trainingrun.control.ledger import summary_of
from trainingrun.planner.feedback import LEAST_STEPS, Measurement, Names
from trainingrun.planner.inputs import planner_inputs
from trainingrun.protocol.records import Epoch, EpochSummary, MachineSpeed, Revision, Rung

_BESIDE = ("reserved", "snapshots", "buddies", "host")  # what no rank's allocator hands out


@dataclass(frozen=True)
class MeasuredSize:
    nodes: int
    steps: int
    step_micros: int
    peak_bytes: int = 0
    micro_batch: int = 0  # with which it trained; a later revision may have another
    recompute: str = "None"

    def then(self, newer: MeasuredSize) -> MeasuredSize:
        """The newer time counts; the fullest that a rank ever was stays, as long as nothing else has changed."""
        if self.way != newer.way:
            return newer
        return replace(newer, peak_bytes=max(self.peak_bytes, newer.peak_bytes))

    @property
    def way(self) -> tuple[int, str]:
        return self.micro_batch, self.recompute

    def is_of(self, rung: Rung) -> bool:
        return (self.nodes, *self.way) == (rung.nodes, rung.micro_batch, rung.activation_checkpointing)


@dataclass(frozen=True)
class Look:
    """Another way to train a size was found to be better, so often in a row: a change is made when it is found again.

    `micro_batch` and `recompute` are those that it trains with until then.
    """

    nodes: int = 0
    micro_batch: int = 0
    recompute: str = "None"
    looks: int = 0


def measured_in(epoch: Epoch | None, summary: EpochSummary | None) -> MeasuredSize | None:
    """None where the epoch did too little to say anything."""
    known = summary_of(epoch, summary)
    steps = known.last_step - known.first_step + 1
    if epoch is None or known.step_seconds <= 0 or steps < LEAST_STEPS:
        return None
    return MeasuredSize(
        nodes=epoch.rung.nodes,
        steps=steps,
        step_micros=round(known.step_seconds * 1e6),
        peak_bytes=known.peak_bytes,
        micro_batch=epoch.rung.micro_batch,
        recompute=epoch.rung.activation_checkpointing,
    )


def with_measured(
    sizes: tuple[MeasuredSize, ...], epoch: Epoch | None, summary: EpochSummary | None
) -> tuple[MeasuredSize, ...]:
    """`sizes` and what `epoch` measured, which ended with `summary`; the oldest are forgotten."""
    newest = measured_in(epoch, summary)
    if newest is None:
        return sizes
    before = next((one for one in sizes if one.nodes == newest.nodes), newest)
    others = [one for one in sizes if one.nodes != newest.nodes]
    return (*others, before.then(newest))[-MEASURED_SIZES:]


def sizes_in(epochs: Sequence[Epoch], last: EpochSummary | None) -> tuple[MeasuredSize, ...]:
    """What all records of a run tell, ascending; `last` is of an epoch that no record tells of yet."""
    sizes: tuple[MeasuredSize, ...] = ()
    for before, record in pairwise(epochs):
        sizes = with_measured(sizes, before, record.previous)
    return with_measured(sizes, epochs[-1], last) if epochs else sizes


def speed_in(epochs: Sequence[Epoch], last: EpochSummary | None) -> MachineSpeed | None:
    """The newest that any record tells of, or `last`; None where nobody measured."""
    told = [record.previous.speed for record in epochs] + [last.speed if last else None]
    return next((speed for speed in reversed(told) if speed is not None), None)


def measurements(revision: Revision, sizes: Iterable[MeasuredSize]) -> tuple[Measurement, ...]:
    """Beside what the frozen plan predicted for them. What the plan does not have, or has otherwise, is left out."""
    model, training, inventory = planner_inputs(revision.spec)
    predicted = {item["rung"]["nodes"]: item for item in revision.plan.get("rungs") or []}
    rungs = {rung.nodes: rung for rung in revision.rungs}
    return tuple(
        Measurement(
            names=Names.of(model, training, inventory.node, rungs[one.nodes]),
            planner_version=revision.planner_version,
            nodes=one.nodes,
            steps=one.steps,
            step_seconds=one.step_micros / 1e6,
            predicted_step_seconds=float(predicted[one.nodes].get("stepSeconds", 0.0)),
            peak_bytes=one.peak_bytes,
            predicted_peak_bytes=_allocated(predicted[one.nodes].get("memory") or {}),
        )
        for one in sizes
        if one.nodes in predicted and one.nodes in rungs and one.is_of(rungs[one.nodes])
    )


def _allocated(bill: Mapping[str, Any]) -> int:
    """As `planner.weighing.allocated` counts it, of a bill in a record."""
    return sum(int(count) for part, count in bill.items() if part not in _BESIDE)


def read_measured(accounting: Mapping[str, Any]) -> tuple[MeasuredSize, ...]:
    return tuple(
        MeasuredSize(
            item["nodes"],
            item["steps"],
            item["stepMicros"],
            item.get("peakBytes", 0),
            item.get("microBatch", 0),
            item.get("recompute", "None"),
        )
        for item in accounting.get("measured") or []
    )


def write_measured(sizes: Iterable[MeasuredSize]) -> list[dict[str, Any]]:
    return [
        {
            "nodes": one.nodes,
            "steps": one.steps,
            "stepMicros": one.step_micros,
            "peakBytes": one.peak_bytes,
            "microBatch": one.micro_batch,
            "recompute": one.recompute,
        }
        for one in sizes
    ]


def read_look(accounting: Mapping[str, Any]) -> Look:
    data = accounting.get("tuning")
    return Look(data["nodes"], data["microBatch"], data["recompute"], data["looks"]) if data else Look()


def write_look(look: Look) -> dict[str, Any]:
    return {
        "nodes": look.nodes,
        "microBatch": look.micro_batch,
        "recompute": look.recompute,
        "looks": look.looks,
    }
