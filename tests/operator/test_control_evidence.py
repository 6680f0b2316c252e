"""When a loss is judged: as soon as something explains it, never by words of before, and never later than agreed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.operator.control_builders import POLICY, START, a_run, condition, failed, with_status, written
from tests.operator.test_control_decide import training_view

from trainingrun.control.decide import decide
from trainingrun.ports import PodPhase
from trainingrun.protocol.messages import Termination
from trainingrun.protocol.records import Lost, RankExit

SEEN = START + 200  # the record is created
SILENT = (Lost(1, 0, "node-1", "Silent"),)
CLOSED = (Lost(1, 0, "node-1", "ConnectionClosed"),)


def a_loss(lost=SILENT, fields=None, **epoch):
    """A run of two nodes that membership has lost one of; its pod is as `fields` say."""
    run = a_run().pod(0).pod(1, fields).epoch(1)
    return run.epoch(2, slots=(0,), lost=lost, last_step=30, restore_step=25, at=SEEN, **epoch)


def judged(run, seconds: float) -> str:
    """The cause that is counted so long after the record; "" while nothing is."""
    causes = written(decide(run.observed(), SEEN + seconds))["disruptions"]["byCause"]
    return causes[0]["cause"] if causes else ""


def test_a_loss_that_nothing_explains_is_judged_in_the_end():
    for lost, wait in ((SILENT, POLICY.silent_evidence_seconds), (CLOSED, POLICY.evidence_seconds)):
        run = a_loss(lost)
        assert judged(run, wait - 0.1) == ""
        assert judged(run, wait) == "Infrastructure"


@pytest.mark.parametrize("delay", [16, 40, 55])
def test_a_node_that_kubernetes_gives_up_much_later_is_still_waited_for(delay):
    """Words of an earlier container on it would have said Application or OutOfMemory."""
    old = {"termination": Termination(1, "Application", "MemoryError"), "restarts": 1}
    run = a_loss(SILENT, old)
    for seconds in (1, 5, 11, delay - 1):
        assert judged(run, seconds) == ""
    run.with_nodes(2, dead=(1,))
    assert judged(run, delay) == "Infrastructure"


def test_a_lost_pod_of_the_adapter_explains_its_loss():
    run = a_loss(SILENT, {"reason": "NodeLost", "message": "node node-1 is not ready"})
    assert judged(run, 0.5) == "Infrastructure"


def test_an_eviction_explains_the_loss_of_its_pod():
    run = a_loss(SILENT, {"reason": "EvictionByEvictionAPI", "terminating": True})
    assert judged(run, 0.5) == "Preemption"


def test_a_container_that_was_killed_for_memory_is_waited_for():
    """Membership sees the connection close at once; the kubelet tells why a second later."""
    run = a_loss(CLOSED)
    assert judged(run, 0.5) == ""
    end = Termination(137, "OOMKilled", "OOMKilled: the container used more memory than its limit.")
    run = a_loss(CLOSED, {"reason": "OOMKilled", "termination": end, "restarts": 1})
    assert judged(run, 3.0) == "OutOfMemory"


def test_words_that_may_be_older_ones_are_not_taken_for_the_newest_too_early():
    """The first kill of this container was no lack of memory, and its words are still there when the second happens."""
    old = {"termination": Termination(137, "Killed", ""), "restarts": 1}
    assert judged(a_loss(CLOSED, old), 0.5) == ""
    new = {"termination": Termination(137, "OOMKilled", "OOMKilled"), "reason": "OOMKilled", "restarts": 2}
    assert judged(a_loss(CLOSED, new), 3.0) == "OutOfMemory"


def test_words_of_the_epoch_that_ended_are_taken_at_once():
    end = Termination(1, "Application", "KeyError: 'x'", epoch=1)
    run = a_loss(CLOSED, {"termination": end, "reason": "CrashLoopBackOff", "restarts": 1})
    assert judged(run, 0.1) == "Application"


def test_a_member_that_is_heard_again_is_waited_for_no_longer():
    back = training_view(2, slots=(0, 1))
    run = a_loss(SILENT).seen_by_membership(back)
    assert judged(run, 1.0) == ""
    assert judged(run, 3.0) == "Infrastructure"


def test_one_that_talks_but_does_not_act_is_a_hang():
    hung = (Lost(1, 0, "node-1", "Unresponsive"),)
    run = a_loss(hung).seen_by_membership(training_view(2, slots=(0, 1)))
    assert judged(run, 3.0) == "Hang"


def test_one_that_did_not_act_because_its_node_died_is_no_hang():
    run = a_loss((Lost(1, 0, "node-1", "Unresponsive"),))
    assert judged(run, 30.0) == ""
    run.with_nodes(2, dead=(1,))
    assert judged(run, 31.0) == "Infrastructure"


def test_the_cause_of_the_newest_epoch_is_shown_before_it_is_counted():
    status = written(decide(a_loss().observed(), SEEN + 1))
    assert status["membership"]["cause"] == "Infrastructure"
    assert status["disruptions"]["byCause"] == []


def test_training_goes_on_in_status_while_a_loss_waits_for_its_evidence():
    run = a_loss().seen_by_membership(training_view(2, slots=(0,), first_step_at=SEEN + 1))
    ready = condition(written(decide(run.observed(), SEEN + 20)), "Ready")
    assert (ready["status"], ready["message"]) == ("True", "1 of 2 nodes")


def test_what_happens_meanwhile_is_counted_after_it_and_in_order():
    run = a_loss().epoch(3, slots=(0,), exits=(RankExit(0, 0, 1, "ValueError"),), at=SEEN + 10)
    assert judged(run, 20) == ""
    run.with_nodes(2, dead=(1,))
    disruptions = written(decide(run.observed(), SEEN + 21))["disruptions"]
    assert [item["cause"] for item in disruptions["recent"]] == ["Infrastructure", "Application"]


def test_a_run_that_is_over_waits_for_nothing():
    end = Termination(
        0, "Done", epoch=2, step=300, manifest="step-00000300.e0002", export="file:///models/demo"
    )
    run = a_loss()
    run.pods[0] = replace(run.pods[0], phase=PodPhase.SUCCEEDED, termination=end)
    assert judged(run, 1.0) == "Infrastructure"


def test_a_taint_on_a_dead_node_is_no_preemption():
    tainted = {"reason": "DeletionByTaintManager", "terminating": True}
    assert judged(a_loss(SILENT, tainted), 1.0) == "Preemption"
    assert judged(a_loss(SILENT, tainted).with_nodes(2, dead=(1,)), 1.0) == "Infrastructure"


@pytest.mark.parametrize("code", [143, 137])
def test_a_pod_that_was_told_to_end_is_not_at_fault(code):
    ended = failed(code, "Killed", "", terminating=True)
    assert judged(a_loss(CLOSED, ended), 1.0) == "Infrastructure"


def test_a_reason_that_was_seen_before_the_pod_went_is_remembered():
    run = a_run().pod(0).pod(1, {"reason": "PreemptionByScheduler", "terminating": True}).epoch(1)
    run = with_status(run, decide(run.observed(), SEEN - 1))
    run.pods.pop()
    run.epoch(2, slots=(0,), lost=CLOSED, at=SEEN)
    assert judged(run, 1.0) == "Preemption"


def test_without_a_view_of_nodes_a_loss_is_judged_by_its_pod():
    ended = failed(137, "OOMKilled", "OOMKilled", reason="OOMKilled")
    assert judged(a_loss(CLOSED, ended).with_nodes(0), 1.0) == "OutOfMemory"
