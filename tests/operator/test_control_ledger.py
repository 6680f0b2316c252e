"""Where the time went: every millisecond is booked once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.control_builders import START, an_epoch

from trainingrun.control.ledger import (
    Ledger,
    close_epoch,
    steps_lost,
    with_last_epoch,
    with_running_epoch,
)
from trainingrun.protocol.records import EpochSummary, Lost, Trigger

LOST = (Lost(1, 0, "node-1", "Silent"),)


def first():
    """Created 4 s after the run."""
    return an_epoch(1, at=START + 4, detected_at=START + 3)


def second(**fields):
    """The first epoch stepped from 10 s to 40 s (300 steps); the loss is seen at 42 s, the epoch made at
    43 s.
    """
    values = {
        "at": START + 43,
        "detected_at": START + 42,
        "lost": LOST,
        "slots": (0,),
        "last_step": 300,
        "first_step_at": START + 10,
        "last_step_at": START + 40,
        "restore_step": 290,
        **fields,
    }
    return an_epoch(2, **values)


def test_a_lost_node_in_the_middle_is_booked_part_by_part():
    ledger = close_epoch(Ledger(), START, None, first())
    assert ledger.lost == {"Start": 4000}
    ledger = close_epoch(ledger, START, first(), second())
    assert ledger.productive == 29_000
    assert ledger.lost == {"Start": 10_000, "Detect": 2000, "Restore": 1000, "Redone": 1000}
    assert ledger.wall == 43_000
    summary = EpochSummary(2, START + 44.5, 291, 300, START + 50.5, step_seconds=0.1)
    now = with_running_epoch(ledger, START, second(), summary, START + 51)
    assert now.lost["Restore"] == 2500
    assert now.productive == 35_000
    assert now.wall == 50_500


def test_a_snapshot_stall_is_not_productive():
    ledger = close_epoch(close_epoch(Ledger(), START, None, first()), START, first(), second(stall=100))
    assert ledger.lost["Checkpoint"] == 3000
    assert ledger.wall == 43_000


def test_a_voluntary_change_is_booked_as_a_resize():
    record = second(trigger=Trigger.JOINED, lost=(), slots=(0, 1), restore_step=300, detected_at=START + 35)
    ledger = close_epoch(close_epoch(Ledger(), START, None, first()), START, first(), record)
    assert ledger.productive == 30_000
    assert ledger.lost == {"Start": 10_000, "Resize": 3000}


def test_a_long_wait_for_nodes_is_booked_as_queue():
    record = second(at=START + 142)
    ledger = close_epoch(close_epoch(Ledger(), START, None, first()), START, first(), record)
    assert ledger.lost["Restore"] == 10_000
    assert ledger.lost["Queue"] == 90_000


def test_silence_is_lost_time_and_news_in_flight_are_not():
    summary = EpochSummary(1, START + 10, 1, 300, START + 40, step_seconds=0.1)
    ledger = close_epoch(Ledger(), START, None, first())
    assert with_running_epoch(ledger, START, first(), summary, START + 42).wall == 40_000
    silent = with_running_epoch(ledger, START, first(), summary, START + 60)
    assert silent.wall == 60_000
    assert silent.lost["Detect"] == 20_000


def test_what_follows_the_last_step_is_the_final_checkpoint():
    summary = EpochSummary(1, START + 10, 1, 300, START + 40, step_seconds=0.1)
    ledger = with_last_epoch(close_epoch(Ledger(), START, None, first()), START, first(), summary, START + 43)
    assert ledger.lost == {"Start": 10_000, "Checkpoint": 3000}
    assert ledger.permille == 697


def test_a_summary_of_another_epoch_is_not_used():
    summary = EpochSummary(7, START + 10, 1, 300, START + 40)
    ledger = with_running_epoch(Ledger(), START, first(), summary, START + 50)
    assert ledger.lost == {"Start": 50_000}


@pytest.mark.parametrize(
    ("done", "restored", "lost"), [(300, 290, 10), (300, 300, 0), (300, 301, 0), (0, 0, 0)]
)
def test_lost_steps_are_those_after_the_restore_point(done, restored, lost):
    assert steps_lost(first(), second(last_step=done, restore_step=restored)) == lost


def test_falling_back_further_after_an_epoch_without_a_step_loses_those_steps():
    fallen = an_epoch(3, at=START + 50, lost=LOST, restore_step=200, trigger=Trigger.RESTORE_FAILED)
    assert steps_lost(second(), fallen) == 90
    ledger = Ledger()
    for before, record in ((None, first()), (first(), second()), (second(), fallen)):
        ledger = close_epoch(ledger, START, before, record)
    assert ledger.lost["Redone"] == pytest.approx(1000 + 90 * 29_000 / 300, abs=1)
    assert ledger.wall == 50_000


SPANS = st.floats(0.0, 500.0)


@given(
    st.lists(
        st.tuples(
            SPANS,  # creation -> first step
            SPANS,  # stepping
            SPANS,  # last step -> detection
            SPANS,  # detection -> next record
            st.integers(0, 400),  # steps done
            st.integers(0, 500),  # steps restored of those before
            st.floats(0.001, 10.0),  # step seconds
            st.integers(0, 1000),
            st.floats(-2.0, 2.0),  # skew of the trainer's clock
            st.booleans(),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_parts_always_add_up_to_the_wall_time(lives):
    at, step = START + 2, 0
    before = an_epoch(1, at=at, detected_at=at)
    ledger = close_epoch(Ledger(), START, None, before)
    for number, (warm, run, detect, agree, steps, back, seconds, stall, skew, stepped) in enumerate(lives, 2):
        first_at = at + warm + skew
        last_at = first_at + run
        seen = at + warm + run + detect
        made = seen + agree
        step = step + steps if stepped else step
        record = an_epoch(
            number,
            at=made,
            detected_at=seen,
            lost=LOST,
            last_step=step if stepped else 0,
            first_step_at=first_at if stepped else 0.0,
            last_step_at=last_at if stepped else 0.0,
            restore_step=max(0, step - back),
            step_seconds=seconds,
            stall=stall,
        )
        ledger = close_epoch(ledger, START, before, record)
        at, step, before = made, record.restore.step, record
        assert min([ledger.productive, *ledger.lost.values()]) >= 0
    wall = (at - START) * 1000
    assert ledger.wall == pytest.approx(wall, rel=0.005, abs=2001)  # a clock that is 2 s ahead, at most
