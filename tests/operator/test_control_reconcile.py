"""observe, decide and apply against a world in memory: conflicts, foreign objects, sizes."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.operator.control_builders import (
    InstantPlans,
    a_pod,
    a_run,
    a_spec,
    an_epoch,
    condition,
    resolve_plainly,
    settle,
    step,
    turn,
    written,
)
from tests.operator.control_story import a_world, check_counters, story
from tests.operator.fake_port import RUN, UID, FakeWorld

from trainingrun.control.counters import read_counters
from trainingrun.control.decide import decide
from trainingrun.control.observed import PlanPending, classify
from trainingrun.control.reconcile import reconcile
from trainingrun.protocol.records import Lost, RankExit


def test_a_status_that_somebody_else_changed_meanwhile_loses_no_counts():
    world, plans = a_world(), InstantPlans()
    for _ in range(4):
        turn(world, plans, 3)
    world.lose_node("node-1")
    world.membership_round()

    class Rival(FakeWorld):
        """Changes the object between the controller's read and its write, twice."""

        rounds = 2

        def pods(self, run):
            if self.rounds:
                self.rounds -= 1
                self.touch()
            return super().pods(run)

    world.__class__ = Rival
    first = reconcile(world, RUN, world.at, plans, resolve_plainly)
    assert first.retry and "the run changed" in first.reason
    settle(world, plans)
    check_counters(world)
    assert read_counters(world.status).by_cause == {"Infrastructure": 1}


def test_a_run_that_is_over_recreates_nothing_even_if_all_its_pods_vanish():
    world, plans = a_world(), InstantPlans()
    story(world, plans, lambda: settle(world, plans))
    made = len(world.created)
    world.pod_list.clear()
    status = world.status
    for _ in range(5):
        world.at += 60
        settle(world, InstantPlans())
    assert len(world.created) == made
    assert world.status == status


def test_status_stays_below_32_kb_with_a_thousand_nodes_and_500_epochs():
    spec = a_spec(maxNodes=1000)
    run = a_run(spec).largest(1000).with_nodes(1000)
    spec["recovery"] = {
        "limits": [
            {"cause": cause, "max": 10000, "windowSeconds": 604800}
            for cause in ("Application", "Infrastructure")
        ],
        "noProgressLimit": 1000,
    }
    slots = tuple(range(1000))
    for slot in slots:
        run.pods.append(a_pod(slot, 300))
    incarnations = dict.fromkeys(slots, 300)
    for number in range(1, 501):
        lost = (
            tuple(Lost(slot, number % 300, f"node-{slot}", "Silent") for slot in range(40))
            if number % 2
            else ()
        )
        exits = (RankExit(number % 1000, 0, 1, "x" * 5000),) if number > 1 and not lost else ()
        run.records.append(
            an_epoch(
                number,
                slots=slots if number == 500 else (0,),
                incarnations=incarnations if number == 500 else None,
                at=1_000_000.0 + 1000.0 * number,
                lost=lost if number > 1 else (),
                exits=exits,
                last_step=number * 10,
                restore_step=number * 10 - 5,
            )
        )
    decision = decide(run.observed(), 1_600_000.0)
    status = written(decision)
    assert status["disruptions"]["accountedEpoch"] == 500
    assert len(json.dumps(status).encode()) < 32 * 1024
    assert sum(item["count"] for item in status["disruptions"]["byCause"]) == 499


def test_another_runs_record_under_our_name_is_an_error_that_people_see():
    world, plans = a_world(), InstantPlans()
    world.foreign_records.add(f"{RUN}-r1")
    for _ in range(4):
        result = step(world, plans)
    assert result.retry
    assert condition(world.status, "Stalled")["reason"] == "RevisionConflict"
    assert world.created == []
    world.foreign_records.clear()
    settle(world, plans)
    assert condition(world.status, "Stalled")["status"] == "False"
    assert len(world.created) == 2


def test_a_revision_that_another_controller_made_meanwhile_is_taken_over():
    world, plans = a_world(), InstantPlans()
    step(world, plans)

    class Race(FakeWorld):
        def create(self, record):
            super().create(replace(record, nonce="the other one's"))
            super().create(record)

    world.__class__ = Race
    assert step(world, plans).retry
    settle(world, plans)
    assert [record.nonce for record in world.revision_list] == ["the other one's"]
    assert len(world.created) == 2


def test_an_unreachable_cluster_is_tried_again():
    world, plans = a_world(), InstantPlans()
    world.unavailable = True
    assert step(world, plans).retry
    assert world.effects == 0


def test_only_a_run_whose_plan_is_in_the_making_is_polled_for_it():
    world, plans = a_world(), InstantPlans()
    answer, plans.answer = plans.answer, PlanPending()
    step(world, plans)
    assert step(world, plans).planning
    plans.answer = answer
    for _ in range(4):
        assert not step(world, plans).planning


def test_a_run_that_is_gone_is_no_error():
    world, plans = a_world(), InstantPlans()
    world.run = None
    assert not step(world, plans).retry


def test_pods_are_classified_by_owner_and_age():
    pods = [
        a_pod(0, 0, terminating=True),
        a_pod(0, 2),
        a_pod(0, 1),
        a_pod(0, 5, run_uid="somebody-else"),
    ]
    seat = classify(UID, pods)[0]
    assert seat.current is not None and seat.current.incarnation == 2
    assert [pod.incarnation for pod in seat.earlier] == [1]
    assert [pod.incarnation for pod in seat.terminating] == [0]
    assert [pod.incarnation for pod in seat.foreign] == [5]
    assert seat.highest == 5


def test_events_of_one_story_are_few_and_readable():
    world, plans = a_world(), InstantPlans()
    story(world, plans, lambda: settle(world, plans))
    lines = [event.message for event in world.events]
    assert len(lines) == len(set(lines))
    assert "demo-r1: fits" in lines
    assert any(line.startswith("epoch 1: ") for line in lines)
    assert any(line.startswith("node-1 lost (Infrastructure): 2 -> 1 node, ") for line in lines)
    assert any(line.startswith("node-1 joined: 1 -> 2 nodes, ") for line in lines)
    assert lines[-1].startswith("step 300, goodput ")
