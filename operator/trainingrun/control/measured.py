"""What the sizes of a run took in truth, as its epochs report it, and the measurements that follow for the planner.

Each epoch record tells what the epoch before it measured, so the records are the source; status keeps a few numbers
for each of the newest sizes, since records are folded once. A plan is frozen, so a number of nodes names one rung.
Pure; used by `folding` and `counters`, and by the CLI for exports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from trainingrun.api.status import MEASURED_SIZES
from trainingrun.control.ledger import summary_of
from trainingrun.planner.feedback import LEAST_STEPS, Measurement, Names
from trainingrun.planner.inputs import planner_inputs
from trainingrun.protocol.records import Epoch, EpochSummary, Revision


@dataclass(frozen=True)
class MeasuredSize:
    nodes: int
    steps: int
    step_micros: int
    peak_bytes: int = 0

    def then(self, newer: MeasuredSize) -> MeasuredSize:
        """The newer time counts; the fullest that a rank ever was stays."""
        return MeasuredSize(
            newer.nodes, newer.steps, newer.step_micros, max(self.peak_bytes, newer.peak_bytes)
        )


def measured_in(epoch: Epoch | None, summary: EpochSummary | None) -> MeasuredSize | None:
    """None where the epoch did too little to say anything."""
    known = summary_of(epoch, summary)
    steps = known.last_step - known.first_step + 1
    if epoch is None or known.step_seconds <= 0 or steps < LEAST_STEPS:
        return None
    return MeasuredSize(epoch.rung.nodes, steps, round(known.step_seconds * 1e6), known.peak_bytes)


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


def measurements(revision: Revision, sizes: Iterable[MeasuredSize]) -> tuple[Measurement, ...]:
    """Beside what the frozen plan predicted for them. A size that the plan does not have is left out."""
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
        if one.nodes in predicted and one.nodes in rungs
    )


def _allocated(bill: Mapping[str, Any]) -> int:
    """As `planner.weighing.allocated` counts it, of a bill in a record."""
    return sum(int(count) for part, count in bill.items() if part not in ("reserved", "snapshots", "host"))


def read_measured(accounting: Mapping[str, Any]) -> tuple[MeasuredSize, ...]:
    return tuple(
        MeasuredSize(item["nodes"], item["steps"], item["stepMicros"], item.get("peakBytes", 0))
        for item in accounting.get("measured") or []
    )


def write_measured(sizes: Iterable[MeasuredSize]) -> list[dict[str, Any]]:
    return [
        {
            "nodes": one.nodes,
            "steps": one.steps,
            "stepMicros": one.step_micros,
            "peakBytes": one.peak_bytes,
        }
        for one in sizes
    ]
