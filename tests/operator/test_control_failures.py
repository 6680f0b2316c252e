"""The cause of a disruption, and the limits that end a run."""

from __future__ import annotations

import pytest
from tests.operator.control_builders import (
    START,
    a_run,
    a_spec,
    an_epoch,
    condition,
    failed,
    kinds,
    with_status,
    written,
)

from trainingrun.control.counters import read_counters
from trainingrun.control.decide import decide
from trainingrun.control.failures import RULES, judge
from trainingrun.control.remembered import member_pods
from trainingrun.ports import PodPhase
from trainingrun.protocol.exit_codes import ExitCode
from trainingrun.protocol.messages import Termination
from trainingrun.protocol.records import Lost, RankExit, Trigger

SILENT = (Lost(1, 0, "node-1", "Silent"),)
BROKEN = "RuntimeError: [gloo/transport/tcp/pair.cc] Connection closed by peer [127.0.0.1]:4567"


def cause(run, **epoch):
    epoch = {"slots": (0,), "last_step": 30, "restore_step": 25, **epoch}
    observed = run.observed()
    return judge(an_epoch(2, **epoch), an_epoch(1), member_pods(observed), observed.nodes)


def test_a_lost_member_on_a_dead_node_is_infrastructure():
    found = cause(a_run().pod(0).pod(1).with_nodes(2, dead=(1,)), lost=SILENT)
    assert (found.cause, found.slot, found.node) == ("Infrastructure", 1, "node-1")


def test_a_lost_member_whose_node_object_is_gone_is_infrastructure():
    assert cause(a_run().pod(0).pod(1).with_nodes(1), lost=SILENT).cause == "Infrastructure"


def test_a_node_that_is_back_already_was_lost_all_the_same():
    run = a_run().pod(0).pod(1, failed(1, "Error", "old words", reason="NodeLost"))
    found = cause(run, lost=SILENT)
    assert (found.cause, found.exit_code, found.message) == ("Infrastructure", 0, "node-1: Silent")


def test_exits_of_survivors_are_consequences_when_a_member_was_lost():
    exits = (RankExit(0, 0, 1, "ValueError: looks like our own fault"),)
    found = cause(a_run().pod(0).with_nodes(2, dead=(1,)), lost=SILENT, exits=exits)
    assert found.cause == "Infrastructure"
    assert "ValueError" not in found.message


@pytest.mark.parametrize("reason", ["Preempting", "Evicted", "Terminated", "DeletionByTaintManager"])
def test_a_pod_that_was_taken_away_is_preemption(reason):
    assert cause(a_run().pod(0).pod(1, {"reason": reason}), lost=SILENT).cause == "Preemption"


def test_an_agent_that_ended_with_an_error_of_its_own_is_application():
    found = cause(a_run().pod(0).pod(1, failed(1, "Application", "KeyError: 'x'")), lost=SILENT)
    assert (found.cause, found.exit_code, found.message) == ("Application", 1, "KeyError: 'x'")


def test_last_words_of_an_earlier_container_are_not_held_against_a_later_loss():
    run = (
        a_run()
        .pod(0)
        .pod(1, {"termination": Termination(1, "Application", "KeyError", epoch=3), "restarts": 1})
    )
    observed = run.observed()
    lost = an_epoch(6, slots=(0,), lost=SILENT)
    assert judge(lost, an_epoch(5), member_pods(observed), observed.nodes).cause == "Infrastructure"


def test_a_container_killed_for_memory_is_out_of_memory():
    run = a_run().pod(0).pod(1, failed(137, "Killed", "", reason="OOMKilled"))
    assert cause(run, lost=SILENT).cause == "OutOfMemory"


def test_a_lost_member_without_any_evidence_is_infrastructure():
    assert cause(a_run().pod(0), lost=SILENT).cause == "Infrastructure"


def test_a_member_that_was_there_but_did_not_answer_is_a_hang():
    lost = (Lost(1, 0, "node-1", "Unresponsive"),)
    assert cause(a_run().pod(0).pod(1), lost=lost).cause == "Hang"


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (1, "ValueError: bad sample", "Application"),
        (134, "terminate called", "Application"),
        (
            1,
            "SaveFailed: checkpoint step-00000010.e0001 was not saved: No space left on device",
            "Infrastructure",
        ),
        (255, "killed, because its fork server died", "Infrastructure"),
        (255, "killed, because its fork server died: out of memory (the container's …", "OutOfMemory"),
        (1, "torch.OutOfMemoryError: CUDA out of memory", "OutOfMemory"),
        (1, "MemoryError", "OutOfMemory"),
        (137, "", "Infrastructure"),
        (65, "step-00000020.e0001: checksum of item 3 differs", "Infrastructure"),
        (1, "Watchdog caught collective operation timeout", "Hang"),
        (1, BROKEN, "Infrastructure"),
    ],
)
def test_a_rank_that_died_is_judged_by_its_exit(code, message, expected):
    exits = (RankExit(0, 1, code, message),)
    assert cause(a_run().pod(0).pod(1), slots=(0, 1), exits=exits).cause == expected


def test_the_rank_that_raised_is_blamed_not_those_whose_connection_broke():
    exits = (
        RankExit(0, 0, 1, BROKEN),
        RankExit(0, 1, 137),
        RankExit(1, 0, 1, "ValueError: bad sample"),
        RankExit(1, 1, 137),
    )
    found = cause(a_run().pod(0).pod(1), slots=(0, 1), exits=exits)
    assert (found.cause, found.slot, found.node, found.message) == (
        "Application",
        1,
        "node-1",
        "ValueError: bad sample",
    )


def test_the_rank_that_was_killed_is_blamed_not_those_whose_connection_broke():
    exits = (RankExit(0, 0, 1, BROKEN), RankExit(1, 1, 137))
    found = cause(a_run().pod(0).pod(1), slots=(0, 1), exits=exits)
    assert (found.cause, found.slot, found.exit_code) == ("Infrastructure", 1, 137)


def test_a_damaged_checkpoint_is_infrastructure():
    found = cause(
        a_run().pod(0).pod(1), trigger=Trigger.RESTORE_FAILED, damaged=("step-00000020.e0001",), slots=(0, 1)
    )
    assert (found.cause, found.message) == ("Infrastructure", "damaged: step-00000020.e0001")


def test_a_state_that_could_not_be_fetched_is_infrastructure_whatever_broke_the_connection():
    exits = (
        RankExit(
            2, 0, ExitCode.NOT_FETCHED, "pieces cannot be fetched: [Errno 104] Connection reset by peer"
        ),
    )
    found = cause(a_run().pod(0).pod(1), trigger=Trigger.RESTORE_FAILED, slots=(0, 1), exits=exits)
    assert (found.cause, found.slot, found.exit_code) == ("Infrastructure", 2, 67)
    assert "cannot be fetched" in found.message


def test_every_rule_says_what_it_is_for():
    assert all(rule.__doc__ for rule in RULES)


# ---- evidence


def test_a_loss_is_judged_when_a_pod_or_node_confirms_it():
    run = a_run().pod(0).pod(1).epoch(1).epoch(2, slots=(0,), lost=SILENT, at=START + 200)
    waiting = decide(run.observed(), START + 201)
    assert written(waiting)["disruptions"]["accountedEpoch"] == 1
    run.with_nodes(2, dead=(1,))
    assert written(decide(run.observed(), START + 202))["disruptions"]["accountedEpoch"] == 2


def test_last_words_of_a_pod_that_is_gone_still_count():
    run = a_run().pod(0).pod(1, failed(1, "Application", "KeyError: 'x'")).epoch(1)
    run = with_status(run, decide(run.observed(), START + 150))
    run.pods.pop()
    run.epoch(2, slots=(0,), lost=SILENT, at=START + 151)
    status = written(decide(run.observed(), START + 152))
    assert status["disruptions"]["byCause"] == [{"cause": "Application", "count": 1}]
    assert "ended" not in status["accounting"]


# ---- limits


def crashing(limits=(), no_progress=1000, **spec):
    spec = a_spec()
    spec["recovery"] = {"limits": list(limits), "noProgressLimit": no_progress}
    return a_run(spec).pod(0).pod(1).epoch(1)


def crash(run, number, *, at=None, step=None, restore=None, message="ValueError: boom", trigger=None):
    """One more crash of a rank on slot 1, folded into status."""
    step = number * 10 if step is None else step
    exits = () if trigger is Trigger.JOINED else (RankExit(1, 0, 1, message),)
    run.epoch(
        number,
        at=at,
        exits=exits,
        trigger=trigger,
        last_step=step,
        restore_step=step if restore is None else restore,
    )
    decision = decide(run.observed(), (at or START + 100 * number) + 5)
    return with_status(run, decision)


APPLICATION = {"cause": "Application", "max": 3, "windowSeconds": 3600}


def test_one_failure_more_than_the_limit_ends_the_run():
    run = crashing([APPLICATION])
    for number in range(2, 5):
        run = crash(run, number)
        assert condition(run.status, "Failed")["status"] == "False"
    run = crash(run, 5)
    found = condition(run.status, "Failed")
    assert found["reason"] == "RestartBudgetSpent"
    assert found["message"] == "Application: 4 failures within 3600 s, and spec.recovery.limits allows 3"
    assert run.status["failure"] == {
        "cause": "Application",
        "slot": 1,
        "node": "node-1",
        "exitCode": 1,
        "message": "ValueError: boom",
    }
    assert kinds(decide(run.observed(), START + 600)) == ["DeletePod", "DeletePod"]


def test_failures_outside_the_window_are_forgiven():
    run = crashing([{**APPLICATION, "windowSeconds": 250}])
    for number in range(2, 12):
        run = crash(run, number)
    assert condition(run.status, "Failed")["status"] == "False"
    assert run.status["disruptions"]["byCause"] == [{"cause": "Application", "count": 10}]


def test_each_cause_has_a_budget_of_its_own():
    run = crashing([{**APPLICATION, "max": 0}, {"cause": "Infrastructure", "max": 1, "windowSeconds": 9999}])
    run.epoch(2, exits=(RankExit(0, 0, 137),), last_step=20, restore_step=20)
    run = with_status(run, decide(run.observed(), START + 205))
    assert condition(run.status, "Failed")["status"] == "False"
    run = crash(run, 3)
    assert condition(run.status, "Failed")["status"] == "True"


def test_a_large_limit_is_counted_in_few_moments():
    run = crashing([{**APPLICATION, "max": 150, "windowSeconds": 10**6}])
    for number in range(2, 152):
        run = crash(run, number)
        assert condition(run.status, "Failed")["status"] == "False"
    assert len(run.status["accounting"]["times"]) <= 65
    run = crash(run, 153)
    assert condition(run.status, "Failed")["status"] == "True"


def test_restarts_without_progress_end_the_run_with_the_first_cause():
    run = crashing(no_progress=3)
    for number in range(2, 5):
        run = crash(run, number, step=7, restore=5, message=f"boom {number}")
        assert condition(run.status, "Failed")["status"] == "False"
    run = crash(run, 5, step=7, restore=5, message="boom 5")
    assert condition(run.status, "Failed")["reason"] == "NoProgress"
    assert run.status["failure"]["message"] == "boom 2"
    assert (
        "4 failures in a row at step 7 without a newer checkpoint"
        in condition(run.status, "Failed")["message"]
    )


@pytest.mark.parametrize(("step", "restore"), [(7, 6), (8, 5)])
def test_a_newer_restore_point_or_a_further_step_is_progress(step, restore):
    run = crashing(no_progress=2)
    for number in (2, 3):
        run = crash(run, number, step=7, restore=5)
    run = crash(run, 4, step=step, restore=restore)
    assert condition(run.status, "Failed")["status"] == "False"
    assert read_counters(run.status).streak.restarts == 1


def test_nodes_that_join_are_no_restarts():
    run = crashing(no_progress=1)
    run = crash(run, 2, step=7, restore=5)
    for number in range(3, 7):
        run = crash(run, number, step=7, restore=7, trigger=Trigger.JOINED)
    assert condition(run.status, "Failed")["status"] == "False"
    assert read_counters(run.status).streak.restarts == 1


def test_the_last_output_is_kept_to_two_kilobytes():
    run = crashing([{**APPLICATION, "max": 0}])
    run = crash(run, 2, message="é" * 5000 + " the error")
    message = run.status["failure"]["message"]
    assert message.endswith(" the error")
    assert len(message.encode()) <= 2048


def test_a_limit_that_is_raised_later_counts_at_once():
    run = crashing([{**APPLICATION, "max": 1}])
    run = crash(run, 2)
    run.spec["recovery"]["limits"][0]["max"] = 5
    for number in range(3, 7):
        run = crash(run, number)
    assert condition(run.status, "Failed")["status"] == "False"


def test_a_pod_that_is_lost_again_before_its_first_step_counts_again():
    run = crashing().with_nodes(2, dead=(1,))
    run.epoch(2, slots=(0,), lost=SILENT, last_step=30, restore_step=25, at=START + 200)
    run.epoch(3, slots=(0,), lost=(Lost(0, 0, "node-1", "Silent"),), restore_step=20, at=START + 201)
    status = written(decide(run.observed(), START + 202))
    assert status["disruptions"]["lostSteps"] == 5 + 5
    assert [item.get("recoverMillis") for item in status["disruptions"]["recent"]] == [None, None]
    assert all(pod.phase is PodPhase.RUNNING for pod in run.pods)
