"""Nodes that do not answer: what counts as lost, what is left alone, and what stays Terminating."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.operator.control_builders import (
    START,
    InstantPlans,
    a_run,
    condition,
    created,
    deleted,
    done,
    settle,
    told,
    turn,
    written,
)
from tests.operator.control_story import a_world, check_counters
from tests.operator.test_control_decide import training_view

from trainingrun.control.counters import read_counters
from trainingrun.control.decide import decide
from trainingrun.protocol.messages import RunView

NOW = START + 105.0
LOST = {"reason": "NodeLost", "message": "node node-1 is not ready", "ready": False}


def a_lost_node():
    return a_run().pod(0).pod(1, LOST).epoch(1).with_nodes(2, dead=(1,))


def heard(view: RunView, slot: int, **fields) -> RunView:
    members = tuple(replace(one, **fields) if one.slot == slot else one for one in view.members)
    return replace(view, members=members)


def replaced(run) -> bool:
    decision = decide(run.observed(), NOW)
    assert deleted(decision) == (["demo-1-0"] if created(decision) else [])
    return [slot for slot, _ in created(decision)] == [1]


def test_a_pod_on_a_lost_node_is_deleted_and_replaced_at_once():
    run = a_lost_node().seen_by_membership(training_view(slots=(0,)))
    decision = decide(run.observed(), NOW)
    assert (deleted(decision), created(decision)) == (["demo-1-0"], [(1, 1)])
    assert "slot 1 gets demo-1-1: node node-1 is lost" in told(decision)


def test_a_worker_that_trains_on_while_its_kubelet_is_down_is_left_alone_and_said():
    run = a_lost_node().seen_by_membership(training_view())
    decision = decide(run.observed(), NOW)
    assert created(decision) == deleted(decision) == []
    ready = condition(written(decision), "Ready")
    assert (ready["status"], ready["reason"]) == ("True", "Training")
    assert ready["message"] == "2 of 2 nodes; not answering Kubernetes, but training on: node-1"


@pytest.mark.parametrize(
    "news",
    [{"silent_seconds": 3.0}, {"incarnation": 1}],
    ids=["old news", "news of another incarnation"],
)
def test_only_fresh_news_of_that_very_pod_keep_it(news):
    assert replaced(a_lost_node().seen_by_membership(heard(training_view(), 1, **news)))


def test_a_member_is_kept_while_membership_is_away_because_nothing_could_join():
    assert not replaced(a_lost_node())


def test_a_member_is_kept_while_membership_collects_its_members_again():
    view = replace(training_view(slots=(0,)), suspicious_of_self=True)
    assert not replaced(a_lost_node().seen_by_membership(view))


def test_a_membership_that_knows_nobody_at_all_keeps_nothing():
    view = replace(training_view(slots=()), suspicious_of_self=True)
    assert replaced(a_lost_node().seen_by_membership(view))


def test_one_that_was_no_member_yet_is_replaced_also_while_membership_is_away():
    run = a_run().pod(0).pod(1, LOST).epoch(1, slots=(0,)).with_nodes(2, dead=(1,))
    assert replaced(run)


def test_a_member_that_membership_dropped_on_a_node_that_is_not_ready_is_replaced():
    run = a_run().pod(0).pod(1).epoch(1).with_nodes(2, dead=(1,))
    run.seen_by_membership(training_view(slots=(0,)))
    decision = decide(run.observed(), NOW)
    assert created(decision) == [(1, 1)]
    assert "slot 1 gets demo-1-1: node node-1 is not ready, and its worker is silent" in told(decision)


def test_a_silent_worker_on_a_node_that_is_ready_is_left():
    run = a_run().pod(0).pod(1).epoch(1).seen_by_membership(training_view(slots=(0,)))
    assert not replaced(run)


def test_a_worker_that_has_not_joined_yet_on_a_node_that_is_not_ready_is_left():
    run = a_run().pod(0).pod(1).epoch(1, slots=(0,)).with_nodes(2, dead=(1,))
    run.seen_by_membership(training_view(slots=(0,)))
    assert not replaced(run)


def test_nothing_is_concluded_from_nodes_where_none_can_be_seen():
    run = a_run().pod(0).pod(1).epoch(1).with_nodes(0).seen_by_membership(training_view(slots=(0,)))
    assert not replaced(run)


def test_a_pod_that_ended_well_needs_no_node():
    run = a_run().pod(0).pod(1, {**LOST, **done()}).epoch(1)
    assert not replaced(run.seen_by_membership(training_view(slots=(0,))))


# ---- over time


def begun(nodes: int = 2):
    world, plans = a_world(nodes), InstantPlans()
    for _ in range(4):
        turn(world, plans)
    return world, plans


def test_a_pod_that_stays_terminating_blocks_no_seat_and_counts_as_nothing():
    world, plans = begun(nodes=3)
    world.node_not_ready("node-1", silent=True)
    for _ in range(30):
        turn(world, plans)
    assert world.pod_list["demo-1-0"].terminating
    assert world.created == ["demo-0-0", "demo-1-0", "demo-1-1"]
    status = world.status
    assert status["membership"]["nodes"] == {"training": 2, "joining": 0, "pending": 0, "terminating": 1}
    assert condition(status, "Ready")["message"] == "2 of 2 nodes"
    world.node_back("node-1")
    for _ in range(5):
        turn(world, plans)
    assert world.created == ["demo-0-0", "demo-1-0", "demo-1-1"]
    assert "demo-1-0" not in world.pod_list
    assert read_counters(world.status).by_cause == {"Infrastructure": 1}
    check_counters(world)


def test_a_kubelet_that_goes_and_comes_back_disturbs_nothing():
    world, plans = begun()
    epochs = len(world.epoch_list)
    for _ in range(5):
        world.node_not_ready("node-1", silent=False)
        for _ in range(20):
            turn(world, plans)
        world.node_back("node-1")
        for _ in range(3):
            turn(world, plans)
    assert world.created == ["demo-0-0", "demo-1-0"]
    assert len(world.epoch_list) == epochs


def test_a_node_that_goes_again_and_again_makes_few_pods():
    world, plans = begun()
    for _ in range(20):
        world.node_not_ready("node-1", silent=True)
        for _ in range(15):
            turn(world, plans)
        world.node_back("node-1")
        for _ in range(15):
            turn(world, plans)
    assert len(world.created) <= 2 + 20


def test_without_room_the_run_goes_on_smaller_and_says_what_it_waits_for():
    world, plans = begun()
    world.node_not_ready("node-1", silent=True)
    for _ in range(5):
        turn(world, plans)
    world.change("demo-1-1", reason="Unschedulable", message="0/2 nodes are available")
    for _ in range(5):
        turn(world, plans)
    ready = condition(world.status, "Ready")
    assert (ready["status"], ready["reason"]) == ("True", "Training")
    assert ready["message"] == (
        "1 of 2 nodes; no node is free for demo-1-1: Unschedulable: 0/2 nodes are available"
    )


@pytest.mark.parametrize("victims", [("demo-1-0",), ("demo-0-0", "demo-1-0")])
def test_pods_that_a_person_deletes_are_replaced_at_once_and_count_as_infrastructure(victims):
    world, plans = begun()
    for name in victims:
        world.change(name, terminating=True)
    settle(world, plans)
    assert world.created[2:] == [f"{name[:-1]}1" for name in victims]
    for _ in range(6):
        turn(world, plans)
    assert read_counters(world.status).by_cause == {"Infrastructure": 1}
    assert condition(world.status, "Ready")["message"] == "2 of 2 nodes"
