"""Properties of the whole loop, in a world where anything may happen at any time.

- deciding again changes nothing,
- whatever happened and in whatever order it was seen, the seats and the counters end up the same; pods that stay
  Terminating for ever, refused pods and nodes that come and go included,
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
    condition,
    failed,
    kinds,
    resolve_plainly,
    settle,
    step,
    written,
)
from tests.operator.control_story import a_world, check_counters, story
from tests.operator.fake_port import ControllerKilled, FakeWorld

from trainingrun.control.decide import decide
from trainingrun.control.reconcile import observe
from trainingrun.ports import PodPhase, Refused
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
            "kubelet down",
            "partition",
            "pod sticks",
            "quota shrinks",
            "quota grows",
            "pods are refused",
            "pods are allowed",
        ]
    ),
    max_size=40,
)


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
        case "kubelet down":
            world.node_not_ready(node, silent=False)
        case "partition":
            world.node_not_ready(node, silent=True)
        case "pod sticks" if victim:
            world.change(victim, terminating=True)
            world.stuck.add(victim)
        case "quota shrinks":
            world.quota = pick % 3
        case "quota grows":
            world.quota = None
        case "pods are refused":
            world.refusal = Refused("Forbidden", "violates PodSecurity")
        case "pods are allowed":
            world.refusal = None


def heal(world: FakeWorld, plans: InstantPlans) -> None:
    """Nothing breaks any more; the controller is given time."""
    world.membership_away = False
    world.quota = world.refusal = None
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
    # The store refuses a name that is taken. A name whose pod is gone may come again only if it never trained.
    assert not world.reborn, "a pod that had trained was created again"


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
    observed = observe(world, world.run, plans, resolve_plainly, plans.refusals)
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
