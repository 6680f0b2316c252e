"""Which pods are created and deleted so that every seat has one that can work."""

from __future__ import annotations

import pytest
from tests.operator.control_builders import (
    START,
    a_run,
    a_spec,
    created,
    deleted,
    done,
    failed,
    kinds,
    told,
)

from trainingrun.control.decide import decide
from trainingrun.ports import PodPhase
from trainingrun.protocol.messages import Termination

NOW = START + 5.0


def test_every_seat_gets_a_pod():
    decision = decide(a_run().observed(), NOW)
    assert created(decision) == [(0, 0), (1, 0)]
    assert kinds(decision)[:3] == ["CreatePod", "CreatePod", "WriteStatus"]


def test_no_more_seats_than_the_frozen_plan_has_a_rung_for():
    assert len(created(decide(a_run(a_spec(maxNodes=9)).largest(3).observed(), NOW))) == 3


def test_fewer_nodes_wanted_removes_the_highest_seats():
    run = a_run(a_spec(maxNodes=1)).pod(0).pod(1)
    decision = decide(run.observed(), NOW)
    assert deleted(decision) == ["demo-1-0"]
    assert created(decision) == []


def test_a_healthy_pod_is_kept():
    decision = decide(a_run().pod(0).pod(1, {"phase": PodPhase.PENDING, "node": ""}).observed(), NOW)
    assert created(decision) == deleted(decision) == []


def test_a_failed_pod_is_deleted_before_the_next_incarnation_is_created():
    run = a_run().pod(0).pod(1, failed()).epoch(1)
    decision = decide(run.observed(), NOW)
    assert kinds(decision)[:2] == ["DeletePod", "CreatePod"]
    assert deleted(decision) == ["demo-1-0"]
    assert created(decision) == [(1, 1)]
    assert "slot 1 gets demo-1-1: its pod ended with exit code 1 (Application)" in told(decision)


def test_a_pod_that_is_being_deleted_is_replaced_without_waiting_for_its_end():
    run = a_run().pod(0).pod(1, {"terminating": True}).epoch(1)
    assert created(decide(run.observed(), NOW)) == [(1, 1)]


def test_a_pod_on_a_lost_node_is_replaced():
    run = a_run().pod(0).pod(1, {"phase": PodPhase.FAILED, "reason": "NodeLost"}).epoch(1)
    decision = decide(run.observed(), NOW)
    assert created(decision) == [(1, 1)]
    assert "slot 1 gets demo-1-1: node node-1 is lost" in told(decision)


def test_a_pod_that_left_is_replaced():
    run = a_run().pod(0).pod(1, failed(75, "Left", "")).epoch(1)
    assert created(decide(run.observed(), NOW)) == [(1, 1)]


def test_a_pod_that_crash_loops_too_long_is_replaced():
    looping = {"reason": "CrashLoopBackOff", "crash_looping_seconds": 5.5}
    briefly = {"reason": "CrashLoopBackOff", "crash_looping_seconds": 4.5}
    decision = decide(a_run().pod(0, briefly).pod(1, looping).epoch(1).observed(), NOW)
    assert created(decision) == [(1, 1)]


def test_the_next_incarnation_is_above_all_that_were_ever_seen():
    run = a_run().pod(0, incarnation=4).pod(1, {"terminating": True}, incarnation=7)
    run.epoch(1, incarnations={0: 4, 1: 9})
    assert created(decide(run.observed(), NOW)) == [(1, 10)]


def test_a_foreign_pod_with_our_name_is_stepped_around_and_told():
    run = a_run().pod(0).pod(1, {"run_uid": "somebody-else"})
    decision = decide(run.observed(), NOW)
    assert created(decision) == [(1, 1)]
    assert deleted(decision) == []
    assert "the name demo-1-0 belongs to a pod of another owner; created demo-1-1 instead" in told(decision)


def test_an_older_duplicate_of_a_seat_is_removed():
    run = a_run().pod(0).pod(0, incarnation=1).pod(1)
    decision = decide(run.observed(), NOW)
    assert deleted(decision) == ["demo-0-0"]
    assert created(decision) == []


@pytest.mark.parametrize(
    ("incarnation", "wait"),
    [(0, 1), (1, 2), (2, 4), (3, 8), (4, 16), (5, 32), (6, 60), (7, 60), (50, 60)],
)
def test_pods_that_never_join_are_made_ever_more_slowly(incarnation, wait):
    run = a_run().pod(0).pod(1, failed(created_at=START), incarnation=incarnation)
    early = decide(run.observed(), START + wait - 0.5)
    assert created(early) == []
    assert early.revisit_at == START + wait
    assert created(decide(run.observed(), START + wait)) == [(1, incarnation + 1)]


def test_a_member_of_an_epoch_is_replaced_at_once():
    run = a_run().pod(0).pod(1, failed(created_at=START), incarnation=6).epoch(1, incarnations={1: 6})
    assert created(decide(run.observed(), START)) == [(1, 7)]


def test_a_pod_that_finished_its_part_is_left_alone_while_another_saves():
    run = a_run().pod(0).pod(1, done()).epoch(1)
    decision = decide(run.observed(), NOW)
    assert created(decision) == deleted(decision) == []


def test_a_pod_that_came_back_too_late_for_the_last_epoch_leaves_with_the_run_and_is_not_replaced():
    """Its kubelet may tell of its end before another one tells of the end of the pod that finished the run."""
    left = Termination(0, "Done", "the run is complete", epoch=2)
    run = a_run().pod(0).pod(1, done(termination=left)).epoch(1).epoch(2, slots=(0,))
    decision = decide(run.observed(), NOW)
    assert created(decision) == deleted(decision) == []


def test_a_pod_that_finished_an_epoch_which_was_repeated_is_needed_again():
    run = a_run().pod(0).pod(1, done()).epoch(1).epoch(2, slots=(0,))
    assert created(decide(run.observed(), NOW)) == [(1, 1)]


def test_pods_that_finished_are_needed_again_when_nobody_finished_the_run():
    lost = {"phase": PodPhase.FAILED, "reason": "NodeLost"}
    decision = decide(a_run().pod(0, lost).pod(1, done()).epoch(1).observed(), NOW)
    assert created(decision) == [(0, 1), (1, 1)]
