"""decide: what is written into status, and what is told in events."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.operator.control_builders import (
    NOW,
    START,
    a_run,
    condition,
    failed,
    kinds,
    told,
    training_view,
    with_status,
    written,
)

from trainingrun.api.status import TrainingRunStatus, read_status, status_json
from trainingrun.control.decide import decide
from trainingrun.control.effects import WriteStatus
from trainingrun.ports import PodPhase
from trainingrun.protocol.records import Lost, RankExit


def test_status_is_what_the_api_model_says():
    lost = (Lost(1, 0, "node-1", "Silent"),)
    run = a_run().pod(0).pod(1, failed()).with_nodes(2, dead=(1,))
    run.epoch(1).epoch(2, slots=(0,), lost=lost, last_step=120, restore_step=115, at=START + 200)
    view = training_view(2, slots=(0,), first_step_at=START + 201)
    run.seen_by_membership(view)
    status = written(decide(run.observed(), START + 205))
    model = read_status(status)
    assert model.disruptions is not None and model.disruptions.lost_steps == 5
    assert set(status) <= {field.alias or name for name, field in TrainingRunStatus.model_fields.items()}


def test_progress_alone_is_written_in_intervals():
    run = a_run().pod(0).pod(1).epoch(1).seen_by_membership(training_view(step=120))
    run = with_status(run, decide(run.observed(), NOW))
    run.seen_by_membership(training_view(step=121))
    assert kinds(decide(run.observed(), NOW + 4.0)) == []
    assert kinds(decide(run.observed(), NOW + 6.0)) == ["WriteStatus"]


def test_the_newest_step_in_memory_alone_is_no_reason_to_write():
    """It comes and goes while snapshots are taken."""
    run = a_run().pod(0).pod(1).epoch(1).seen_by_membership(training_view(step=120))
    run = with_status(run, decide(run.observed(), NOW))
    run.seen_by_membership(training_view(step=121, memory_step=121))
    assert kinds(decide(run.observed(), NOW + 1.0)) == []


def test_a_status_as_the_api_server_stores_it_is_not_written_again():
    """It adds the defaults of the definition, such as an empty list."""
    run = (
        a_run()
        .pod(0)
        .pod(1, {"phase": PodPhase.PENDING, "ready": False})
        .epoch(1, exits=(RankExit(1, 0, 1, "x"),))
    )
    run.status_is(status_json(read_status(written(decide(run.observed(), NOW)))))
    assert "ended" in run.status["accounting"] and "streak" in run.status["accounting"]
    assert kinds(decide(run.observed(), NOW + 60.0)) == []


def test_a_recovery_is_told_in_one_line():
    lost = (Lost(1, 0, "node-1", "Silent"),)
    run = a_run().pod(0).pod(1, failed()).with_nodes(2, dead=(1,)).epoch(1)
    run = with_status(run, decide(run.observed(), START + 101))
    run.epoch(
        2, slots=(0,), lost=lost, last_step=123, restore_step=120, at=START + 200, detected_at=START + 199.5
    )
    first = decide(run.observed(), START + 200.5)
    assert not [line for line in told(first) if "lost (" in line]
    run = with_status(run, first)
    run.seen_by_membership(training_view(2, slots=(0,), first_step_at=START + 201.3))
    second = decide(run.observed(), START + 202)
    line = "node-1 lost (Infrastructure): 2 -> 1 node, restored step 120 from Memory, 3 steps lost, 1.8 s"
    assert line in told(second)
    run = with_status(run, second)
    assert line not in told(decide(run.observed(), START + 203))


def test_a_failure_by_a_process_is_told_with_its_cause():
    exits = (RankExit(1, 0, 1, "ValueError: bad sample"),)
    run = a_run().pod(0).pod(1).epoch(1)
    run = with_status(run, decide(run.observed(), START + 101))
    run.epoch(2, exits=exits, last_step=50, restore_step=50, at=START + 200)
    run.seen_by_membership(training_view(2, first_step_at=START + 201))
    [line] = told(decide(run.observed(), START + 202))
    assert line.startswith(
        "a process on node-1 died (Application): 2 nodes, restored step 50 from Memory, 0 steps"
    )


def test_steps_of_an_epoch_of_which_nobody_is_left_to_tell_are_remembered():
    """Membership and all agents went at once: the next record knows nothing of the epoch before."""
    run = a_run().with_nodes(2).epoch(1, at=START + 2)
    heard = with_status(run, decide(run.seen_by_membership(training_view(step=120)).observed(), NOW))
    silent = heard.epoch(2, at=START + 60, restore_step=118)
    status = written(decide(silent.observed(), NOW + 60.0))
    assert status["disruptions"]["lostSteps"] == 2
    assert status["accounting"]["productiveMillis"] > 0


@pytest.mark.parametrize("knows", ["nothing", "no step yet"])
def test_time_that_was_productive_stays_so_while_membership_is_away(knows):
    """It is not lost, and nobody can say yet what the time since then was."""
    run = a_run().pod(0).pod(1).epoch(1, at=START + 2)
    before = written(decide(run.seen_by_membership(training_view(step=120)).observed(), NOW))
    run.status_is(before).seen_by_membership(None)
    if knows == "no step yet":
        run.seen_by_membership(replace(training_view(), progress=None))
    later = [one.status for one in decide(run.observed(), NOW + 60).effects if isinstance(one, WriteStatus)]
    assert all(status["goodput"] == before["goodput"] for status in later)
    assert before["goodput"]["productiveSeconds"] > 0


def test_a_checkpoint_that_could_not_be_saved_is_said_by_its_condition_while_training_goes_on():
    problem = "checkpoint step-00000120.e0001 was not saved: No space left on device"
    view = training_view()
    full = replace(view, progress=replace(view.progress, save_problem=problem))
    run = a_run().pod(0).pod(1).epoch(1)
    status = written(decide(run.seen_by_membership(full).observed(), NOW))
    fresh = condition(status, "CheckpointFresh")
    assert (fresh["status"], fresh["reason"]) == ("False", "SaveFailed")
    assert fresh["message"] == f"{problem}; training goes on, and it is tried again; there is none yet"
    assert condition(status, "Ready")["status"] == "True"
    status = written(decide(run.seen_by_membership(view).observed(), NOW))
    assert condition(status, "CheckpointFresh")["reason"] == "NoCheckpointYet"
