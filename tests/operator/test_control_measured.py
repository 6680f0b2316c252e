"""What the epochs of a run measured: kept with the run, bounded, and put beside what was predicted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.control_builders import SPEC, a_revision, a_run, an_epoch, written

from trainingrun.api.status import MEASURED_SIZES, read_status, status_json
from trainingrun.control.counters import Counters, read_counters, write_accounting
from trainingrun.control.decide import decide
from trainingrun.control.measured import MeasuredSize, measured_in, measurements, sizes_in, with_measured
from trainingrun.control.observed import PlanResult
from trainingrun.control.planning import answer
from trainingrun.protocol import wire
from trainingrun.protocol.records import Epoch, EpochSummary, Revision


def summary(epoch: int = 1, steps: int = 50, step_seconds: float = 0.2, peak: int = 0) -> EpochSummary:
    return EpochSummary(
        epoch,
        first_step_at=1.0,
        first_step=11,
        last_step=10 + steps,
        step_seconds=step_seconds,
        peak_bytes=peak,
    )


def planned_revision() -> Revision:
    plan = answer(dict(SPEC))
    assert isinstance(plan, PlanResult)
    return replace(
        a_revision(SPEC), rungs=plan.rungs, plan=dict(plan.plan), planner_version=plan.planner_version
    )


def test_an_epoch_says_how_long_a_step_of_its_size_took_and_what_it_allocated() -> None:
    found = measured_in(an_epoch(1, slots=(0, 1)), summary(peak=123))
    assert found == MeasuredSize(nodes=2, steps=50, step_micros=200_000, peak_bytes=123, micro_batch=4)


@pytest.mark.parametrize(
    "said",
    [None, summary(epoch=2), summary(steps=4), summary(step_seconds=0.0), EpochSummary(epoch=1)],
    ids=["nothing", "of another epoch", "few steps", "no time", "no step"],
)
def test_an_epoch_that_did_too_little_says_nothing(said: EpochSummary | None) -> None:
    assert measured_in(an_epoch(1), said) is None
    assert with_measured((), an_epoch(1), said) == ()


def test_the_newer_time_of_a_size_counts_and_its_fullest_moment_stays() -> None:
    first = with_measured((), an_epoch(1), summary(peak=900))
    second = with_measured(first, an_epoch(2), summary(2, step_seconds=0.3, peak=700))
    assert second == (MeasuredSize(2, 50, 300_000, 900, 4),)
    other = replace(an_epoch(3), rung=replace(an_epoch(3).rung, micro_batch=2))
    third = with_measured(second, other, summary(3, peak=500))
    assert third == (MeasuredSize(2, 50, 200_000, 500, 2),)


def test_only_the_newest_sizes_are_kept() -> None:
    sizes: tuple[MeasuredSize, ...] = ()
    for number in range(1, MEASURED_SIZES + 5):
        epoch = an_epoch(number, slots=tuple(range(number)))
        sizes = with_measured(sizes, epoch, summary(number))
    assert len(sizes) == MEASURED_SIZES
    assert sizes[-1].nodes == MEASURED_SIZES + 4


def test_all_records_of_a_run_tell_the_same_as_folding_them_one_by_one() -> None:
    records = [an_epoch(1), replace(an_epoch(2), previous=summary(1)), an_epoch(3, slots=(0,))]
    sizes = sizes_in(records, summary(3, step_seconds=0.4))
    assert [(one.nodes, one.step_micros) for one in sizes] == [(2, 200_000), (1, 400_000)]
    assert sizes_in([], None) == ()


def test_folding_a_record_keeps_what_the_epoch_before_measured_in_status() -> None:
    run = a_run().epoch(1, slots=(0, 1)).epoch(2, slots=(0, 1))
    run.records[1] = replace(run.records[1], previous=summary(1, peak=77))
    status = written(decide(run.pod(0).pod(1).observed(), 1_000_300.0))
    assert status["accounting"]["measured"] == [
        {
            "nodes": 2,
            "steps": 50,
            "stepMicros": 200_000,
            "peakBytes": 77,
            "microBatch": 4,
            "recompute": "None",
        }
    ]
    assert read_counters(status_json(read_status(status))).measured == (MeasuredSize(2, 50, 200_000, 77, 4),)


def test_status_without_measurements_says_nothing_of_them() -> None:
    assert "measured" not in write_accounting(Counters())


def test_measurements_stand_beside_what_the_frozen_plan_predicted() -> None:
    revision = planned_revision()
    predicted: dict[str, Any] = revision.plan["rungs"][1]
    seconds, bill = predicted["stepSeconds"], predicted["memory"]
    size = revision.rungs[1].micro_batch
    sizes = [
        MeasuredSize(2, 80, round(seconds * 1.5e6), 1000, size),
        MeasuredSize(99, 80, 1, 0, size),  # not in the plan
        MeasuredSize(1, 80, 1, 0, 1),  # otherwise in the plan
    ]
    found = measurements(revision, sizes)
    assert len(found) == 1
    assert found[0].time_ratio() == pytest.approx(1.5, rel=1e-4)
    assert found[0].predicted_peak_bytes == sum(
        count for part, count in bill.items() if part not in ("reserved", "snapshots", "host")
    )
    assert found[0].planner_version == revision.planner_version
    assert found[0].names.layout.startswith("tensor 1")


def test_a_revision_without_predictions_gives_no_measurements() -> None:
    assert measurements(a_revision(SPEC), [MeasuredSize(1, 80, 1)]) == ()


def test_records_of_before_say_that_nobody_measured_memory() -> None:
    record = an_epoch(2)
    data = wire.to_json(record)
    del data["previous"]["peakBytes"]
    assert wire.from_json(Epoch, data).previous.peak_bytes == 0
