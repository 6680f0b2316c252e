"""A whole run in a small world: ranks run out of memory until the plan of their size needs less, and never again."""

from __future__ import annotations

from tests.operator.control_builders import SPEC, InstantPlans, settle
from tests.operator.control_story import a_world, check_counters
from tests.operator.fake_port import FakeWorld

from trainingrun.control.observed import PlanResult
from trainingrun.control.planning import answer
from trainingrun.protocol.records import RankExit, Revision

KILLED = (RankExit(0, 0, 1, "DefaultCPUAllocator: out of memory"),)


def real_plans() -> InstantPlans:
    plans, found = InstantPlans(), answer(dict(SPEC))
    assert isinstance(found, PlanResult)
    plans.answer = found
    return plans


def turn(
    world: FakeWorld, plans: InstantPlans, exits: tuple[RankExit, ...] = (), seconds: float = 8.0
) -> None:
    settle(world, plans)
    world.kubelet()
    world.membership_round(exits)
    settle(world, plans)
    world.at += seconds


def test_a_size_that_runs_out_of_memory_needs_less_each_time_until_nothing_is_left_to_try() -> None:
    world, plans = a_world(), real_plans()
    for _ in range(4):
        turn(world, plans)
    assert world.revision_list[0].rungs == plans.answer.rungs  # type: ignore[union-attr]
    for _ in range(12):
        turn(world, plans, KILLED)
        turn(world, plans)
    needed = [_allocated(revision) for revision in world.revision_list]
    assert len(needed) > 3
    assert needed == sorted(set(needed), reverse=True)
    assert needed[1] <= 0.9 * needed[0]
    assert world.epoch_list[-1].revision == world.revision_list[-1].name
    assert {revision.rungs[1].layout for revision in world.revision_list} == {plans.answer.rungs[1].layout}  # type: ignore[union-attr]
    assert all(revision.rungs[0] == world.revision_list[0].rungs[0] for revision in world.revision_list)
    check_counters(world)
    assert any("demo-r2: 2 nodes: micro-batch" in event.message for event in world.events)


def _allocated(revision: Revision) -> int:
    bill = revision.plan["rungs"][1]["memory"]
    return sum(count for part, count in bill.items() if part not in ("reserved", "snapshots", "host"))


def test_a_healthy_run_that_is_as_predicted_keeps_its_one_revision_through_faults() -> None:
    world, plans = a_world(), real_plans()
    for _ in range(4):
        turn(world, plans)
    world.lose_node("node-1")
    for _ in range(3):
        turn(world, plans)
    world.node_back("node-1")
    for _ in range(3):
        turn(world, plans)
    turn(world, plans, (RankExit(0, 1, 1, "ValueError: boom"),))
    turn(world, plans)
    assert [revision.name for revision in world.revision_list] == ["demo-r1"]
    assert len(world.epoch_list) > 3


def test_a_name_that_somebody_else_has_hinders_nothing() -> None:
    world, plans = a_world(), real_plans()
    world.foreign_records.add("demo-r2")
    for _ in range(4):
        turn(world, plans)
    for _ in range(3):
        turn(world, plans, KILLED)
        turn(world, plans)
    assert [revision.name for revision in world.revision_list] == ["demo-r1"]
    check_counters(world)
