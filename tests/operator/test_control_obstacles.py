"""Pods that cannot start, or end before they can work: said with the cause, not made again and again."""

from __future__ import annotations

import pytest
from tests.operator.control_builders import (
    START,
    InstantPlans,
    a_run,
    a_spec,
    condition,
    created,
    deleted,
    failed,
    settle,
    told,
    with_status,
    written,
)
from tests.operator.control_story import a_world
from tests.operator.fake_port import FakeWorld
from tests.operator.test_control_decide import training_view

from trainingrun.api.status import read_status
from trainingrun.control.decide import decide
from trainingrun.control.obstacles import RULES
from trainingrun.ports import PodPhase
from trainingrun.protocol.messages import AgentPhase, MemberView

NOT_FOUND = 'Failed to pull image "example.com/trainer:typo": not found'
WAITING = {"phase": PodPhase.PENDING, "ready": False}


def hindered(reason: str, message: str, **fields):
    pod = {**WAITING, "reason": reason, "message": message, **fields}
    return a_run().pod(0, pod).pod(1, pod)


def at(seconds: float) -> float:
    return START + seconds


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("ErrImagePull", "ImageError"),
        ("ImagePullBackOff", "ImageError"),
        ("InvalidImageName", "ImageError"),
        ("CreateContainerConfigError", "PodCannotStart"),
        ("CreateContainerError", "PodCannotStart"),
        ("RunContainerError", "PodCannotStart"),
        ("FailedMount", "PodCannotStart"),
    ],
)
def test_a_pod_that_cannot_start_is_said_with_kubernetes_words_and_not_replaced(reason, expected):
    run = hindered(reason, NOT_FOUND)
    decision = decide(run.observed(), at(1))
    ready = condition(written(decision), "Ready")
    assert (ready["status"], ready["reason"]) == ("False", expected)
    assert f"demo-0-0: {reason}: {NOT_FOUND} (1 more seat waits)" in ready["message"]
    assert condition(written(decision), "Stalled")["status"] == "False"
    for later in (6, 60, 6000):
        decision = decide(run.observed(), at(later))
        assert created(decision) == deleted(decision) == []
        assert condition(written(decision), "Stalled")["reason"] == expected


def test_a_kubelet_that_alternates_between_two_words_does_not_send_the_person_away():
    run = hindered("ImagePullBackOff", NOT_FOUND)
    run = with_status(run, decide(run.observed(), at(30)))
    again = hindered("ErrImagePull", NOT_FOUND, created_at=at(29)).status_is(run.status)
    decision = decide(again.observed(), at(31))
    assert condition(written(decision), "Stalled")["status"] == "True"
    assert told(decision) == []


def test_an_image_that_is_there_after_all_is_started_without_a_new_pod():
    run = hindered("ImagePullBackOff", NOT_FOUND)
    status = written(decide(run.observed(), at(30)))
    run = a_run().pod(0).pod(1).status_is(status)
    decision = decide(run.observed(), at(60))
    assert created(decision) == deleted(decision) == []
    assert condition(written(decision), "Ready")["reason"] == "Starting"
    assert condition(written(decision), "Stalled")["status"] == "False"


def test_a_message_of_the_scheduler_is_passed_on():
    text = '0/3 nodes are available: persistentvolumeclaim "data" not found'
    status = written(decide(hindered("Unschedulable", text, node="").observed(), at(30)))
    ready = condition(status, "Ready")
    assert ready["reason"] == "WaitingForNodes"
    assert f"no node is free for demo-0-0: Unschedulable: {text}" in ready["message"]
    assert condition(status, "Stalled")["status"] == "False"


def test_a_pod_that_has_a_node_and_no_container_for_long_is_told_of_and_left_alone():
    run = hindered("", "")
    for soon in (1, 19):
        assert "0-0" not in condition(written(decide(run.observed(), at(soon))), "Ready")["message"]
    for later in (21, 6000):
        decision = decide(run.observed(), at(later))
        assert created(decision) == deleted(decision) == []
        ready = condition(written(decision), "Ready")
        assert ready["reason"] == "WaitingForNodes"
        assert (
            "demo-0-0 has no container on node-0 after 20 s; its image is being pulled, or"
            in ready["message"]
        )
        assert condition(written(decision), "Stalled")["status"] == "False"
    said = hindered("ContainerCreating", "no such volume", created_at=at(0))
    assert (
        "after 20 s: no such volume; "
        in condition(written(decide(said.observed(), at(30))), "Ready")["message"]
    )


def test_what_a_person_must_mend_is_said_before_what_only_takes_time():
    waiting = {**WAITING, "reason": "Unschedulable", "message": "0/1 nodes"}
    broken = {**WAITING, "reason": "ImagePullBackOff", "message": NOT_FOUND}
    status = written(decide(a_run().pod(0, waiting).pod(1, broken).observed(), at(30)))
    assert condition(status, "Ready")["reason"] == "ImageError"


def test_one_seat_that_cannot_start_does_not_decide_the_state_while_another_may():
    broken = {**WAITING, "reason": "ImagePullBackOff", "message": NOT_FOUND}
    status = written(decide(a_run().pod(0).pod(1, broken).observed(), at(30)))
    ready = condition(status, "Ready")
    assert ready["reason"] == "Starting"
    assert NOT_FOUND in ready["message"]
    assert condition(status, "Stalled")["status"] == "False"


def test_a_run_that_trains_says_why_it_does_not_grow_and_stays_ready():
    broken = {**WAITING, "reason": "ImagePullBackOff", "message": NOT_FOUND}
    run = a_run().pod(0).pod(1, broken).epoch(1, slots=(0,)).seen_by_membership(training_view(slots=(0,)))
    status = written(decide(run.observed(), at(30)))
    ready = condition(status, "Ready")
    assert (ready["status"], ready["reason"]) == ("True", "Training")
    assert ready["message"] == f"1 of 2 nodes; demo-1-0: ImagePullBackOff: {NOT_FOUND}"
    assert condition(status, "Reconciling")["reason"] == "Growing"
    assert condition(status, "Stalled")["status"] == "False"


def test_too_few_members_because_a_replacement_cannot_start_are_said_with_its_cause():
    broken = {**WAITING, "reason": "ImagePullBackOff", "message": NOT_FOUND}
    run = a_run().pod(0, broken, incarnation=1).pod(1, broken, incarnation=1).epoch(1)
    run.seen_by_membership(training_view(slots=()))
    status = written(decide(run.observed(), at(30)))
    ready = condition(status, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ImageError")
    assert ready["message"].startswith("0 of at least 1 nodes are there; demo-0-1: ImagePullBackOff")


def test_every_rule_says_what_it_is_for():
    assert all(rule.__doc__ for rule in RULES)


# ---- pods that end at once


def crash_for(world: FakeWorld, plans: InstantPlans, seconds: int) -> None:
    for _ in range(seconds):
        settle(world, plans)
        world.kubelet()
        world.crash()
        world.at += 1.0


def test_pods_that_crash_at_once_for_ever_are_made_ever_more_slowly():
    world, plans = a_world(), InstantPlans()
    crash_for(world, plans, 600)
    assert 2 * 10 <= len(world.created) <= 2 * 17
    before = len(world.created)
    crash_for(world, plans, 600)
    assert len(world.created) - before <= 2 * 11


def test_the_cause_of_crashes_is_in_status_all_the_time():
    """Also while a new pod starts, of which nothing is known yet."""
    world, plans = a_world(), InstantPlans()
    for second in range(200):
        settle(world, plans)
        if second >= 4:
            ready = condition(world.status, "Ready")
            assert ready["reason"] == "PodCannotStart", second
            assert "ended before it could train: exit code 1 (Error): ModuleNotFoundError" in ready["message"]
        world.kubelet()
        world.crash()
        world.at += 1.0
    assert condition(world.status, "Stalled")["reason"] == "PodCannotStart"
    assert world.status_writes < 60
    read_status(world.status)
    assert len([event for event in world.events if event.reason == "PodCannotStart"]) == 1


def test_a_crash_or_two_call_for_nobody():
    run = a_run().pod(0, failed(created_at=START)).pod(1, failed(created_at=START))
    status = written(decide(run.observed(), at(0.5)))
    assert condition(status, "Ready")["reason"] == "PodCannotStart"
    assert condition(status, "Stalled")["status"] == "False"


def test_words_of_a_crash_are_forgotten_once_the_seat_has_a_member():
    run = a_run().pod(0).pod(1, failed(created_at=START))
    run = with_status(run, decide(run.observed(), at(0.5)))
    assert [item["slot"] for item in run.status["accounting"]["ended"]] == [1]
    run = a_run().pod(0).pod(1, incarnation=1).epoch(1, incarnations={1: 1}).status_is(run.status)
    assert "ended" not in written(decide(run.observed(), at(101)))["accounting"]


def test_one_that_talks_to_membership_and_ends_before_it_trains_backs_off_too():
    seen = MemberView(1, 4, "node-1", AgentPhase.PREPARING, 0, "", 0.1, False)
    view = training_view(slots=(0,))
    view = type(view)(**{**vars(view), "members": (*view.members, seen)})
    run = a_run().pod(0).pod(1, failed(69, "MembershipLost", created_at=START), incarnation=4)
    run.epoch(1, slots=(0,)).seen_by_membership(view)
    early = decide(run.observed(), at(10))
    assert created(early) == []
    assert created(decide(run.observed(), at(17))) == [(1, 5)]


def test_a_long_output_is_cut_at_its_beginning():
    run = a_run(a_spec(maxNodes=1)).pod(
        0, failed(1, "Application", "x" * 5000 + " the error", created_at=START)
    )
    message = condition(written(decide(run.observed(), at(0.5))), "Ready")["message"]
    assert message.endswith(" the error")
    assert len(message) < 800


@pytest.mark.parametrize("phase", [PodPhase.FAILED, PodPhase.SUCCEEDED])
@pytest.mark.parametrize(
    ("code", "end", "reason"),
    [(64, "BadConfiguration", "BadConfiguration"), (66, "NoUsableCheckpoint", "NoUsableCheckpoint")],
)
def test_an_ending_that_no_restart_can_change_ends_the_run_before_and_after_an_epoch(
    phase, code, end, reason
):
    """A kubelet that restarts what fails is told 0; the true code is in the last words."""
    over = failed(code, end, "spec.data: no such file", phase=phase)
    for run in (a_run().pod(0, over).pod(1), a_run().pod(0, over).pod(1).epoch(1)):
        decision = decide(run.observed(), at(5))
        status = written(decision)
        assert condition(status, "Failed")["reason"] == reason
        assert status["failure"]["exitCode"] == code
        assert created(decision) == []


@pytest.mark.parametrize(
    "words",
    [
        "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found",
        "0/3 nodes are available: 3 node(s) didn't find available persistent volumes to bind.",
    ],
)
def test_a_claim_without_a_volume_is_named_and_calls_for_a_person_after_a_while(words):
    spec = a_spec()
    spec["checkpoint"]["location"]["uri"] = "pvc://ckpt/demo"
    pod = {**WAITING, "reason": "Unschedulable", "message": words, "node": ""}
    run = a_run(spec).pod(0, pod).pod(1, pod)
    for seconds, stalled in ((10, "False"), (40, "True")):
        status = written(decide(run.observed(), at(seconds)))
        ready = condition(status, "Ready")
        assert ready["reason"] == "ClaimPending"
        assert "PersistentVolumeClaim ckpt is Pending, because no volume or storage class" in ready["message"]
        assert condition(status, "Stalled")["status"] == stalled
