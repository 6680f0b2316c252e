"""Pods and records that the API server will not have: said at once, tried again slowly, in nobody's way."""

from __future__ import annotations

import dataclasses

import pytest
from tests.operator.control_builders import (
    InstantPlans,
    a_spec,
    condition,
    failed,
    settle,
    step,
    turn,
)
from tests.operator.control_story import a_world
from tests.operator.fake_port import RUN, FakeWorld

from trainingrun.ports import PodPhase, Refused, Unavailable

SECURITY = 'pods "demo-0-0" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true'
ACCOUNT = (
    'pods "demo-0-0" is forbidden: error looking up service account ns/me: serviceaccount "me" not found'
)
LIMITS = 'pods "demo-0-0" is forbidden: maximum memory usage per Pod is 1Gi, but limit is 8Gi'
INVALID = 'Pod "demo-0-0" is invalid: spec.containers[0].image: Required value'
GOING = 'pods "demo-0-0" is forbidden: unable to create new content in namespace ns because it is being terminated'


def refusing(message: str, reason: str = "Forbidden") -> tuple[FakeWorld, InstantPlans]:
    world, plans = a_world(), InstantPlans()
    world.refusal = Refused(reason, message)
    return world, plans


def pass_time(world: FakeWorld, plans: InstantPlans, seconds: float) -> None:
    """The controller looks whenever it wants to, as the loop lets it."""
    until = world.at + seconds
    while world.at < until:
        outcome = step(world, plans)
        assert not outcome.retry
        world.at = max(world.at + 0.1, min(outcome.revisit_at or until, until))


@pytest.mark.parametrize("message", [SECURITY, ACCOUNT, LIMITS, INVALID])
def test_a_refused_pod_is_said_with_the_apis_own_words_in_the_same_reconcile(message):
    world, plans = refusing(message)
    for _ in range(3):  # plan, revision, pods
        step(world, plans)
    ready = condition(world.status, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "PodRefused")
    assert message in ready["message"]
    assert "1 more seat waits" in ready["message"]


def test_a_refused_pod_is_tried_again_ever_more_slowly():
    world, plans = refusing(SECURITY)
    pass_time(world, plans, 600)
    # 2 first tries; then one try a round, because a second seat would be refused as well.
    assert 12 <= world.tries <= 20
    before = world.tries
    pass_time(world, plans, 600)
    assert world.tries - before <= 12


def test_the_status_of_a_refused_run_is_not_written_again_and_again():
    world, plans = refusing(SECURITY)
    pass_time(world, plans, 600)
    assert world.status_writes <= 8
    assert len([event for event in world.events if event.reason == "Refused"]) == 1


def test_a_run_goes_on_by_itself_when_its_pods_are_allowed():
    world, plans = refusing(ACCOUNT)
    pass_time(world, plans, 100)
    world.refusal = None
    pass_time(world, plans, 61)
    assert [len(world.live(slot)) for slot in range(2)] == [1, 1]
    assert condition(world.status, "Stalled")["status"] == "False"


def test_a_changed_run_is_tried_at_once():
    world, plans = refusing(SECURITY)
    pass_time(world, plans, 200)
    world.refusal = None
    world.run = dataclasses.replace(world.run, generation=2)
    settle(world, plans)
    assert len(world.created) == 2


def test_a_refusal_calls_for_a_person_only_when_it_lasts():
    """The default service account appears a moment after its namespace."""
    world, plans = refusing(ACCOUNT)
    pass_time(world, plans, 4)
    assert condition(world.status, "Stalled")["status"] == "False"
    assert condition(world.status, "Reconciling")["reason"] == "PodRefused"
    pass_time(world, plans, 4)
    stalled = condition(world.status, "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "PodRefused")
    assert ACCOUNT in stalled["message"]
    assert condition(world.status, "Reconciling")["status"] == "False"


def test_a_restarted_controller_tries_once_at_once_and_calls_nobody_back():
    world, plans = refusing(SECURITY)
    pass_time(world, plans, 300)
    tries = world.tries
    settle(world, InstantPlans())
    assert world.tries == tries + 2
    assert condition(world.status, "Stalled")["status"] == "True"


def test_a_quota_waits_for_others_and_not_for_a_person():
    world, plans = a_world(), InstantPlans()
    world.quota = 0
    pass_time(world, plans, 120)
    ready = condition(world.status, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "QuotaExceeded")
    assert "exceeded quota: few, requested: pods=1, used: pods=0, limited: pods=0" in ready["message"]
    assert condition(world.status, "Stalled")["status"] == "False"
    assert condition(world.status, "Reconciling")["reason"] == "QuotaExceeded"
    assert world.tries <= 14


def test_a_quota_that_allows_one_pod_fewer_lets_the_run_train_at_that_size():
    world, plans = a_world(), InstantPlans()
    world.quota = 1
    for _ in range(8):
        turn(world, plans)
    assert world.created == ["demo-0-0"]
    ready, busy = condition(world.status, "Ready"), condition(world.status, "Reconciling")
    assert (ready["status"], ready["reason"]) == ("True", "Training")
    assert ready["message"].startswith("1 of 2 nodes; the API server refuses a pod for seat 1: pods ")
    assert (busy["status"], busy["reason"]) == ("True", "Growing")
    assert condition(world.status, "Stalled")["status"] == "False"
    assert len([event for event in world.events if event.reason == "Refused"]) == 1
    world.quota = None
    for _ in range(62):
        turn(world, plans)
    assert condition(world.status, "Ready")["message"] == "2 of 2 nodes"


def test_a_seat_that_waits_for_a_quota_does_not_delay_the_recovery_of_another():
    world, plans = a_world(), InstantPlans()
    world.quota = 1
    for _ in range(40):  # seat 1 has backed off far by now
        turn(world, plans)
    world.change("demo-0-0", **failed())
    settle(world, plans)
    assert world.created == ["demo-0-0", "demo-0-1"]


def test_a_quota_is_tried_again_at_once_when_a_pod_of_the_run_makes_room():
    world, plans = a_world(), InstantPlans()
    for _ in range(4):
        turn(world, plans)
    world.quota = 2
    world.change("demo-1-0", terminating=True)
    settle(world, plans)
    assert "demo-1-1" not in world.created  # the old one still counts
    for _ in range(30):
        world.at += 1.0
        settle(world, plans)
    world.kubelet()  # it is gone now
    settle(world, plans)
    assert "demo-1-1" in world.created


def test_too_few_allowed_pods_for_the_smallest_size_are_waited_for():
    spec = a_spec(minNodes=2)
    spec["recovery"] = {"limits": [], "noProgressLimit": 1000}
    world, plans = FakeWorld({"spec": spec}), InstantPlans()
    plans.answer = dataclasses.replace(plans.answer, rungs=plans.answer.rungs[1:])
    world.quota = 1
    for _ in range(3):
        settle(world, plans)
        world.kubelet()
        world.at += 1.0
    ready = condition(world.status, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "QuotaExceeded")
    assert "0 of 2 nodes have joined; the API server refuses a pod for seat 1" in ready["message"]


def test_many_refused_seats_make_one_try_a_round():
    spec = a_spec(maxNodes=50)
    world, plans = FakeWorld({"spec": spec}, 50), InstantPlans(largest=50)
    world.quota = 10
    pass_time(world, plans, 5)
    assert len(world.created) == 10
    tries = world.tries
    pass_time(world, plans, 300)
    assert world.tries - tries <= 10
    world.quota = 30
    pass_time(world, plans, 61)
    assert len(world.created) == 30
    assert world.tries - tries <= 35


def test_a_refused_record_is_said_and_tried_again():
    world, plans = a_world(), InstantPlans()
    world.record_refusal = Refused("Forbidden", "exceeded quota: objects, used: controllerrevisions=9")
    pass_time(world, plans, 120)
    ready = condition(world.status, "Ready")
    assert ready["reason"] == "QuotaExceeded"
    assert "the run's record: exceeded quota: objects" in ready["message"]
    assert world.created == []
    world.record_refusal = Refused("Invalid", "data: too long")
    pass_time(world, plans, 120)
    assert condition(world.status, "Stalled")["reason"] == "RecordRefused"
    world.record_refusal = None
    pass_time(world, plans, 61)
    assert len(world.created) == 2


def test_a_namespace_that_is_being_terminated_makes_no_storm():
    world, plans = a_world(), InstantPlans()
    for _ in range(4):
        turn(world, plans)
    world.refusal = world.record_refusal = world.event_refusal = Refused("Forbidden", GOING)
    for name in list(world.pod_list):
        world.change(name, terminating=True)
    tries = world.tries
    pass_time(world, plans, 10)
    world.pod_list.clear()
    world.view = None
    pass_time(world, plans, 590)
    assert world.tries - tries <= 20
    assert condition(world.status, "Stalled")["status"] == "False"


def test_nothing_is_created_for_a_run_that_is_deleted_during_a_recovery():
    world, plans = a_world(), InstantPlans()
    for _ in range(4):
        turn(world, plans)
    world.lose_node("node-1")
    world.run = dataclasses.replace(world.run, deleting=True)
    made, writes = list(world.created), world.status_writes
    for _ in range(5):
        turn(world, plans)
    assert (world.created, world.status_writes) == (made, writes)


def test_a_status_that_is_refused_is_an_error_with_back_off_and_no_crash():
    class Picky(FakeWorld):
        def write_status(self, name, status, resource_version):
            raise Refused("Invalid", "status.accounting: too many")

    world = Picky({"spec": a_spec()})
    outcome = step(world, InstantPlans())
    assert outcome.retry
    assert outcome.reason == "refused (Invalid): status.accounting: too many"


def test_a_pod_that_cannot_be_made_now_does_not_keep_the_status_from_being_written():
    class Away(FakeWorld):
        def create_pod(self, template):
            raise Unavailable("membership has not started yet")

    world, plans = Away({"spec": a_spec()}), InstantPlans()
    for _ in range(3):
        outcome = step(world, plans)
    assert outcome.retry
    assert outcome.reason == "unavailable: membership has not started yet"
    assert condition(world.status, "Ready")["reason"] == "Starting"


def test_a_book_forgets_runs_that_are_gone_and_knows_a_namesake_from_the_one_before():
    world, plans = refusing(SECURITY)
    for _ in range(3):
        step(world, plans)
    book = plans.refusals
    assert set(book.of(world.run)) == {0, 1}
    assert book.of(dataclasses.replace(world.run, uid="another")) == {}
    book.forget([RUN])
    assert book.keys() == set()


def test_pods_that_ended_do_not_count_against_a_quota():
    world, plans = a_world(), InstantPlans()
    for _ in range(4):
        turn(world, plans)
    world.quota = 2
    world.change("demo-1-0", **failed())
    settle(world, plans)
    assert "demo-1-1" in world.created
    assert world.pod_list["demo-1-0"].phase is PodPhase.FAILED
