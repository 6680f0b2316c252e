"""A run that is scaled down is smaller because that is wanted: no disruption, no limit, and said so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.operator.control_builders import (
    START,
    InstantPlans,
    a_run,
    a_spec,
    told,
    turn,
    with_status,
    written,
)
from tests.operator.control_story import a_world
from tests.operator.test_control_decide import training_view

from trainingrun.control.counters import read_counters
from trainingrun.control.decide import decide
from trainingrun.protocol.records import Lost

LEFT = (Lost(1, 0, "node-1", "Left"),)
TERMINATING = {"terminating": True}


def shrunk(lost=LEFT, pod=None, *, most=1, dead=()):
    """A run of two nodes that loses the second at 200 s; `pod`: what there still is of that pod."""
    run = a_run(a_spec(maxNodes=2)).pod(0).pod(1).epoch(1)
    run = with_status(run, decide(run.observed(), START + 101))
    run.spec = a_spec(maxNodes=most)
    run.pods = run.pods[:1]
    if pod is not None:
        run.pod(1, pod)
    run.with_nodes(2, dead=dead)
    return run.epoch(
        2, slots=(0,), lost=lost, last_step=50, restore_step=48, at=START + 200, detected_at=START + 199
    ).seen_by_membership(training_view(2, slots=(0,), first_step_at=START + 201))


@pytest.mark.parametrize("pod", [None, TERMINATING])
def test_a_scale_down_is_told_as_one_and_costs_no_budget(pod):
    run = shrunk(pod=pod)
    decision = decide(run.observed(), START + 202)
    status = written(decision)
    assert (status["membership"]["cause"], status["disruptions"]["byCause"]) == ("Shrinking", [])
    assert status["disruptions"]["recent"] == [] and status["disruptions"]["lostSteps"] == 2
    [line] = [line for line in told(decision) if "->" in line]
    assert line.startswith("node-1 left: 2 -> 1 node, ") and line.endswith("from Memory, 2 steps lost")
    lost = read_counters(status).ledger.lost
    assert (lost["Resize"], lost.get("Detect", 0)) == (2000, 0)
    assert {item["part"] for item in status["goodput"]["lost"]} >= {"Resize"}


def test_it_stays_one_when_the_run_is_scaled_up_again():
    run = shrunk()
    run = with_status(run, decide(run.observed(), START + 202))
    run.spec = a_spec(maxNodes=2)
    status = written(decide(run.observed(), START + 210))
    assert (status["membership"]["cause"], status["disruptions"]["byCause"]) == ("Shrinking", [])


@pytest.mark.parametrize(
    ("lost", "pod", "most", "dead"),
    [
        (LEFT, TERMINATING, 2, ()),  # deleted by somebody, and its seat is wanted
        (LEFT, None, 1, (1,)),  # its node is lost
        ((Lost(1, 0, "node-1", "Silent"),), TERMINATING, 1, ()),  # perhaps with its node
        (LEFT, {**TERMINATING, "reason": "EvictionByEvictionAPI"}, 1, ()),
    ],
)
def test_what_breaks_is_a_disruption_even_when_fewer_nodes_are_wanted(lost, pod, most, dead):
    status = written(decide(shrunk(lost, pod, most=most, dead=dead).observed(), START + 300))
    assert sum(item["count"] for item in status["disruptions"]["byCause"]) == 1


def test_while_members_leave_the_state_is_shrinking():
    run = shrunk()
    run.records = run.records[:1]
    view = training_view(1, slots=(0,))
    run.seen_by_membership(replace(view, waiting_for="Preparing epoch 2"))
    ready = written(decide(run.observed(), START + 200))["conditions"][0]
    assert (ready["reason"], ready["message"]) == ("Shrinking", "Preparing epoch 2")


def test_scaled_down_in_a_world_with_a_controller_it_shrinks_once():
    world, plans = a_world(), InstantPlans()
    for _ in range(4):
        turn(world, plans, 3)
    world.run.manifest["spec"]["scale"]["maxNodes"] = 1
    for _ in range(4):
        turn(world, plans, 3)
    told_events = [(event.type, event.reason) for event in world.events]
    assert told_events.count(("Normal", "Shrunk")) == 1
    assert not [reason for kind, reason in told_events if kind == "Warning"]
    status = world.status
    assert (status["membership"]["summary"], status["disruptions"]["byCause"]) == ("1/1", [])
