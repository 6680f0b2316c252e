"""When snapshots and durable checkpoints are due, and what is reported of an epoch."""

from __future__ import annotations

from dataclasses import replace

from tests.trainer.layouts import a_rung

from trainer.policy import DurablePolicy, SnapshotPolicy
from trainer.report import Reporter
from trainer.state import TrainingState
from trainingrun.protocol.records import Epoch, EpochSummary, Restore, RestoreSource, Store, Trigger


def test_the_first_step_of_an_epoch_gets_a_snapshot() -> None:
    assert SnapshotPolicy(None).due(41)
    assert SnapshotPolicy(10).due(41)


def test_a_measured_interval_is_the_smallest_that_keeps_the_stall_within_two_percent() -> None:
    policy = SnapshotPolicy(None)
    for _ in range(5):
        policy.stepped(0.1)
    policy.taken(1)
    policy.cost(0.0099)
    assert policy.interval_steps() == 5  # 0.0099 s over 5 x 0.1 s = 1.98 %
    assert [step for step in range(2, 8) if policy.due(step)] == [6, 7]


def test_a_cheap_snapshot_is_taken_every_step() -> None:
    policy = SnapshotPolicy(None)
    policy.stepped(0.1)
    policy.cost(0.001)
    assert policy.interval_steps() == 1


def test_a_specified_interval_is_kept_and_zero_means_never() -> None:
    policy = SnapshotPolicy(3)
    policy.taken(1)
    assert [step for step in range(2, 6) if policy.due(step)] == [4, 5]
    assert not SnapshotPolicy(0).due(1)


def test_durable_checkpoints_follow_the_clock_or_multiples_of_steps() -> None:
    by_time = DurablePolicy(30.0, None, now=100.0)
    assert not by_time.due(5, 129.9)
    assert by_time.due(6, 130.0)
    by_time.begun(131.0)
    by_time.saved()
    assert not by_time.due(7, 160.0)
    assert by_time.due(7, 161.0)
    by_steps = DurablePolicy(None, 50, now=0.0)
    assert [step for step in range(1, 151) if by_steps.due(step, 0.0)] == [50, 100, 150]
    assert not DurablePolicy(None, None, now=0.0).due(50, 1e9)


def a_record(**changes: object) -> Epoch:
    record = Epoch(
        name="run-e3",
        run="run",
        run_uid="uid",
        epoch=3,
        revision="run-r1",
        nonce="",
        created_at=0.0,
        members=(),
        rung=a_rung(),
        store=Store("", 0, ""),
        restore=Restore(RestoreSource.MEMORY, step=20, epoch=2),
        trigger=Trigger.MEMBER_LOST,
        detected_at=0.0,
        previous=EpochSummary(epoch=2, durable="step-00000010.e0001", durable_step=10),
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def a_state(step: int) -> TrainingState:
    return TrainingState(None, step=step, tokens=1000 * step, loss=2.0, learning_rate=1e-3)  # type: ignore[arg-type]


def test_a_summary_says_when_the_epoch_first_stepped_and_the_median_step() -> None:
    reporter = Reporter(a_record(), total_steps=100)
    for number, seconds in enumerate((5.0, 0.2, 0.1, 0.1, 0.1)):
        reporter.stepped(
            a_state(21 + number), at=1000.0 + number, seconds=seconds, tokens=1000, data_wait=seconds / 10
        )
    summary = reporter.summary
    assert (summary.epoch, summary.first_step, summary.first_step_at) == (3, 21, 1000.0)
    assert (summary.last_step, summary.last_step_at, summary.tokens) == (25, 1004.0, 25_000)
    assert (summary.step_seconds, summary.data_wait_seconds) == (0.1, 0.01)
    for peak in (300, 500, 400):
        reporter.peaked(peak)
    assert (summary.peak_bytes, reporter.summary.peak_bytes) == (0, 500)
    progress = reporter.progress(a_state(25))
    assert (progress.tokens_per_second, progress.total_steps) == (10_000.0, 100)


def test_the_stall_is_the_share_of_all_time_that_snapshots_took() -> None:
    reporter = Reporter(a_record(), total_steps=100)
    for step in range(21, 31):
        reporter.stepped(a_state(step), at=0.0, seconds=0.098, tokens=1, data_wait=0.0)
    reporter.snapshot_taken(0.02)
    assert reporter.summary.snapshot_stall_permille == 20


def test_the_newest_known_checkpoint_is_carried_over_until_a_newer_one_is_committed() -> None:
    reporter = Reporter(a_record(), total_steps=100)
    assert reporter.summary.durable == "step-00000010.e0001"
    restored = Reporter(
        a_record(restore=Restore(RestoreSource.DURABLE, 8, 1, "step-00000008.e0001")), total_steps=100
    )
    assert (restored.summary.durable, restored.summary.durable_step) == ("step-00000008.e0001", 8)
    reporter.saved("step-00000030.e0003", 30)
    assert (reporter.summary.durable, reporter.summary.durable_step) == ("step-00000030.e0003", 30)


def test_a_failed_save_is_tried_again_after_pauses_that_double() -> None:
    policy = DurablePolicy(60.0, None, now=0.0)
    policy.begun(60.0)
    policy.failed(60.0)
    assert not policy.due(1, 64.9)
    assert policy.due(1, 65.0)
    policy.begun(65.0)
    policy.failed(65.0)
    assert not policy.due(1, 74.9)
    assert policy.due(1, 75.0)
    policy.begun(75.0)
    policy.saved()
    assert not policy.due(1, 134.9)
    assert policy.due(1, 135.0)


def test_while_a_checkpoint_is_written_none_is_due_and_a_step_that_passes_is_made_up_for() -> None:
    policy = DurablePolicy(None, 10, now=0.0)
    assert policy.due(10, 0.0)
    policy.begun(0.0)
    assert [step for step in range(11, 23) if policy.due(step, 0.0)] == []
    policy.saved()
    assert policy.due(23, 0.0)
    policy.begun(0.0)
    policy.saved()
    assert [step for step in range(24, 41) if policy.due(step, 0.0)] == [30, 40]
    by_time = DurablePolicy(30.0, None, now=0.0)
    assert by_time.due(1, 30.0)
    by_time.begun(30.0)
    assert not by_time.due(2, 90.0)
    by_time.saved()
    assert by_time.due(3, 90.0), "the interval is counted from one beginning to the next"
