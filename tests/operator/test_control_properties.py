"""Properties of the whole loop, in a world where anything may happen at any time.

- deciding again changes nothing,
- whatever happened and in whatever order it was seen, the seats and the counters end up the same,
- a controller that is killed after any single effect is continued by the next one, without duplicates.
"""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.operator.control_builders import (
    InstantPlans,
    a_pod,
    a_run,
    a_spec,
    an_epoch,
    condition,
    failed,
    kinds,
    resolve_plainly,
    settle,
    step,
    told,
    written,
)
from tests.operator.fake_port import RUN, UID, ControllerKilled, FakeWorld
from trainingrun.control.counters import read_counters
from trainingrun.control.decide import decide
from trainingrun.control.failures import is_disruption
from trainingrun.control.observed import classify
from trainingrun.control.reconcile import observe, reconcile
from trainingrun.ports import PodPhase
from trainingrun.protocol.records import Lost, RankExit

EFFORT = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

ACTIONS = st.lists(
    st.sampled_from(
        [
            "reconcile",
            "reconcile",
            "reconcile",
            "kubelet",
            "kubelet",
            "membership",
            "membership",
            "rank dies",
            "pod fails",
            "pod is deleted",
            "node lost",
            "node back",
            "time passes",
            "membership away",
            "membership back",
            "somebody edits",
        ]
    ),
    max_size=40,
)


def a_world(nodes: int = 2) -> FakeWorld:
    spec = a_spec()
    spec["recovery"] = {"limits": [], "noProgressLimit": 1000}
    return FakeWorld({"spec": spec}, nodes)


def act(world: FakeWorld, action: str, plans: InstantPlans, pick: int) -> None:
    """One thing that happens. `pick` chooses the victim."""
    running = sorted(pod.name for pod in world.pod_list.values() if pod.phase is PodPhase.RUNNING)
    victim = running[pick % len(running)] if running else None
    node = f"node-{pick % len(world.node_map)}"
    match action:
        case "reconcile":
            step(world, plans)
        case "kubelet":
            world.kubelet()
        case "membership":
            world.membership_round()
        case "rank dies":
            world.membership_round((RankExit(pick % 2, 0, 1, "ValueError: boom"),))
        case "pod fails" if victim:
            world.change(victim, **failed())
        case "pod is deleted" if victim:
            world.change(victim, terminating=True)
        case "node lost":
            world.lose_node(node)
        case "node back":
            world.node_back(node)
        case "time passes":
            world.at += 7.5
        case "membership away":
            world.membership_away = True
        case "membership back":
            world.membership_away = False
        case "somebody edits":
            world.touch()


def heal(world: FakeWorld, plans: InstantPlans) -> None:
    """Nothing breaks any more; the controller is given time."""
    world.membership_away = False
    for name in world.node_map:
        world.node_back(name)
    for _ in range(8):
        world.at += 61.0
        settle(world, plans)
        world.kubelet()
        world.membership_round()
    settle(world, plans)


def check_seats(world: FakeWorld) -> None:
    for slot in range(2):
        live = world.live(slot)
        assert len(live) <= 1, f"slot {slot} has {[pod.name for pod in live]}"
    assert len(world.created) == len(set(world.created)), "a pod was created twice"


def check_counters(world: FakeWorld) -> None:
    """Counted once each: status agrees with the records, whoever folded them and when."""
    counters = read_counters(world.status)
    assert counters.accounted_epoch == len(world.epoch_list)
    broken = [record for record in world.epoch_list if is_disruption(record)]
    assert sum(counters.by_cause.values()) == len(broken)
    assert counters.ledger.wall == pytest_approx_wall(world)


def pytest_approx_wall(world: FakeWorld) -> int:
    """The ledger is as of the creation of the newest record, to the millisecond."""
    assert world.run is not None
    if not world.epoch_list:
        return 0
    return round(world.epoch_list[-1].created_at * 1000) - round(world.run.created_at * 1000)


@EFFORT
@given(actions=ACTIONS, picks=st.lists(st.integers(0, 7), min_size=40, max_size=40))
def test_any_history_converges_to_full_seats_and_exact_counters(actions, picks):
    world, plans = a_world(), InstantPlans()
    for action, pick in zip(actions, picks, strict=False):
        act(world, action, plans, pick)
        check_seats(world)
    heal(world, plans)
    assert [len(world.live(slot)) for slot in range(2)] == [1, 1]
    check_seats(world)
    check_counters(world)
    assert condition(world.status, "Ready")["reason"] == "Training"


@EFFORT
@given(actions=ACTIONS, picks=st.lists(st.integers(0, 7), min_size=40, max_size=40))
def test_deciding_again_at_the_same_time_wants_nothing_more(actions, picks):
    world, plans = a_world(), InstantPlans()
    for action, pick in zip(actions, picks, strict=False):
        act(world, action, plans, pick)
    settle(world, plans)
    assert world.run is not None
    observed = observe(world, world.run, plans, resolve_plainly)
    assert kinds(decide(observed, world.at)) == []


@EFFORT
@given(
    actions=ACTIONS,
    picks=st.lists(st.integers(0, 7), min_size=40, max_size=40),
    lives=st.lists(st.integers(0, 4), min_size=60, max_size=60),
)
def test_controllers_that_are_killed_after_any_effect_still_converge(actions, picks, lives):
    world, plans = a_world(), InstantPlans()
    remaining = iter(lives)
    for action, pick in zip(actions, picks, strict=False):
        life = next(remaining, None)
        world.die_after = None if life is None else world.effects + life
        try:
            act(world, action, plans, pick)
        except ControllerKilled:
            plans = InstantPlans()  # the next one knows nothing
        check_seats(world)
    world.die_after = None
    heal(world, plans)
    assert [len(world.live(slot)) for slot in range(2)] == [1, 1]
    check_seats(world)
    check_counters(world)


def story(world: FakeWorld, plans: InstantPlans, run_controller) -> None:
    """A whole run: start, a lost node, a dead rank, a failed pod, the end."""

    def turn(seconds: float = 3.0) -> None:
        run_controller()
        world.kubelet()
        world.membership_round()
        world.at += seconds

    for _ in range(4):
        turn()
    world.lose_node("node-1")
    for _ in range(3):
        turn()
    world.node_back("node-1")
    for _ in range(3):
        turn()
    world.membership_round((RankExit(0, 1, 1, "ValueError: boom"),))
    for _ in range(2):
        turn()
    name = world.live(0)[0].name
    world.change(name, **failed())
    for _ in range(4):
        turn()
    world.finish()
    run_controller()
    run_controller()


def outcome(world: FakeWorld) -> dict[str, object]:
    status = json.loads(json.dumps(world.status))
    return {
        "pods": sorted(world.pod_list),
        "created": world.created,
        "disruptions": status["disruptions"],
        "accounting": status["accounting"],
        "goodput": status["goodput"],
        "progress": status["progress"],
        "complete": condition(status, "Complete")["status"],
    }


def test_a_whole_run_is_the_same_wherever_its_controller_is_killed():
    calm, plans = a_world(), InstantPlans()
    story(calm, plans, lambda: settle(calm, plans))
    expected = outcome(calm)
    assert expected["complete"] == "True"
    assert expected["disruptions"]["byCause"] == [
        {"cause": "Application", "count": 2},
        {"cause": "Infrastructure", "count": 1},
    ]

    for kill_at in range(calm.effects):
        world, mine = a_world(), InstantPlans()
        world.die_after = kill_at

        def controller(world=world, mine=mine):
            try:
                settle(world, mine)
            except ControllerKilled:
                world.die_after = None
                mine.asked.clear()
                settle(world, mine)

        story(world, mine, controller)
        assert outcome(world) == expected, f"killed before effect {kill_at}"


@EFFORT
@given(order=st.permutations(["pod", "node", "record", "view"]))
def test_the_order_in_which_a_loss_is_seen_does_not_matter(order):
    """Pods, nodes and membership tell of one dead node in any order; the controller looks after each."""
    run = a_run().pod(0).pod(1).epoch(1)
    run.status_is(written(decide(run.observed(), 1_000_101.0)))
    made = []
    for at, news in enumerate(order):
        if news == "pod":
            index = next(i for i, pod in enumerate(run.pods) if pod.name == "demo-1-0")
            run.pods[index] = replace(run.pods[index], phase=PodPhase.FAILED, reason="NodeLost")
        elif news == "node":
            run.with_nodes(2, dead=(1,))
        elif news == "record":
            lost = (Lost(1, 0, "node-1", "Silent"),)
            run.epoch(2, slots=(0,), lost=lost, last_step=30, restore_step=25, at=1_000_200.0)
        decision = decide(run.observed(), 1_000_200.0 + at)
        for effect in decision.effects:
            if type(effect).__name__ == "WriteStatus":
                run.status_is(effect.status)
            elif type(effect).__name__ == "CreatePod":
                template = effect.template
                made.append((template.slot, template.incarnation))
                run.pods.append(a_pod(template.slot, template.incarnation, phase=PodPhase.PENDING, node=""))
            elif type(effect).__name__ == "DeletePod":
                index = next(i for i, pod in enumerate(run.pods) if pod.uid == effect.uid)
                run.pods[index] = replace(run.pods[index], terminating=True)
    assert made == [(1, 1)]
    disruptions = run.status["disruptions"]
    assert disruptions["byCause"] == [{"cause": "Infrastructure", "count": 1}]
    assert (disruptions["accountedEpoch"], disruptions["lostSteps"]) == (2, 5)


def test_a_status_that_somebody_else_changed_meanwhile_loses_no_counts():
    world, plans = a_world(), InstantPlans()
    for _ in range(4):
        settle(world, plans)
        world.kubelet()
        world.membership_round()
        world.at += 3
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
            {"cause": cause, "max": 10000, "windowSeconds": 604800} for cause in ("Application", "Infrastructure")
        ],
        "noProgressLimit": 1000,
    }
    slots = tuple(range(1000))
    for slot in slots:
        run.pods.append(a_pod(slot, 300))
    incarnations = dict.fromkeys(slots, 300)
    for number in range(1, 501):
        lost = tuple(Lost(slot, number % 300, f"node-{slot}", "Silent") for slot in range(40)) if number % 2 else ()
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
    assert told  # the helper is used by other tests of these lines
