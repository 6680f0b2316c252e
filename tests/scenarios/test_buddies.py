"""One copy of the state over two nodes, each of which keeps the other's snapshots: either may be lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.scenarios.line import Line
from tests.scenarios.story import FP32_BOUND, Told, told, undisturbed

from trainingrun.protocol.records import RestoreSource, Trigger

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]
local_only = pytest.mark.local_only  # a cluster need not tell all of it again

STEPS = 150
FEW = 40  # steps: two generations of this tiny model, whose steps take as long as an agent's look at its mailbox

# Pipeline 2 over two nodes of one process: each node holds half of the state. No durable checkpoint comes in between.
TWO_HALVES: dict[str, Any] = {
    "parallelism__axes": {"pipeline": 2},
    "resources__processesPerNode": 1,
    "scale__minNodes": 2,
    "checkpoint__durable": {"intervalSteps": 1000},
}


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return told(tmp_path_factory.mktemp("calm"), undisturbed, steps=STEPS, **TWO_HALVES)


def restored_from_memory(after: Told, calm: Told, *, times: int = 1) -> None:
    assert after.sources == [RestoreSource.INITIAL, *[RestoreSource.MEMORY] * times]
    assert after.triggers == [Trigger.STARTED, *[Trigger.MEMBER_LOST] * times]
    for epoch in after.epochs[1:]:
        assert epoch.rung.buddies
        # What is known of a lost rank 0 may be older than the snapshot that its buddy has.
        assert abs(epoch.previous.last_step - epoch.restore.step) <= FEW
    assert after.losses.furthest_from(calm.losses) == 0.0  # the sizes did not change


@local_only
def test_the_plan_says_that_there_are_two_copies_and_why(calm: Told) -> None:
    plan = calm.end.status["plan"]
    assert plan["stateCopies"] == 2
    assert "each node keeps the snapshots of a buddy too" in plan["reason"]


@local_only
def test_a_lost_half_comes_back_from_the_other_node_s_memory(calm: Told, tmp_path: Path) -> None:
    def story(line: Line) -> None:
        line.wait_for_step(60)
        node = line.node_of(slot=1)
        line.kill_node(node)
        line.start_node(node)
        line.wait_for(lambda now: now.epoch >= 2, "a new epoch")

    after = told(tmp_path, story, steps=STEPS, **TWO_HALVES)
    assert after.sizes == [2, 2]
    restored_from_memory(after, calm)


def test_another_node_takes_the_seat_of_the_one_that_held_rank_0(calm: Told, tmp_path: Path) -> None:
    def story(line: Line) -> None:
        line.wait_for_step(60)
        line.kill_node(line.node_of(slot=0))
        line.wait_for(lambda now: now.epoch >= 2, "a new epoch")

    after = told(tmp_path, story, steps=STEPS, nodes=3, **TWO_HALVES)
    before, now = ({member.node for member in epoch.members} for epoch in after.epochs)
    assert len(before & now) == 1
    restored_from_memory(after, calm)


@local_only
def test_whoever_came_back_keeps_the_other_half_again(calm: Told, tmp_path: Path) -> None:
    def story(line: Line) -> None:
        for slot, step in ((1, 50), (0, 100)):
            line.wait_for_step(step)
            epoch, node = line.moment().epoch, line.node_of(slot=slot)
            line.kill_node(node)
            line.start_node(node)
            line.wait_for(lambda now, before=epoch: now.epoch > before, "a new epoch")

    after = told(tmp_path, story, steps=STEPS, **TWO_HALVES)
    restored_from_memory(after, calm, times=2)


@local_only
def test_two_copies_that_lost_a_node_make_one_whose_halves_keep_each_other(
    calm: Told, tmp_path: Path
) -> None:
    """Four nodes hold two copies; of three, two go on, each with the half that it had; then one of them is lost."""

    def story(line: Line) -> None:
        line.wait_for_step(30)
        line.kill_node(line.node_of(slot=0))
        line.wait_for(lambda now: now.members == 2, "one copy")
        line.wait_for_step(80)
        first = line.moment().epochs[-1].members[0]
        line.kill_node(first.node)
        line.wait_for(lambda now: now.epoch >= 3, "a new epoch")

    after = told(tmp_path, story, steps=STEPS, nodes=4, **TWO_HALVES, scale__maxNodes=4)
    assert after.sizes == [4, 2, 2]
    whole, second, third = after.epochs
    assert [epoch.rung.buddies for epoch in after.epochs] == [False, True, True]
    place = {member.slot: number % 2 for number, member in enumerate(whole.members)}
    assert [place[member.slot] for member in second.members] == [0, 1]
    assert after.sources == [RestoreSource.INITIAL, RestoreSource.MEMORY, RestoreSource.MEMORY]
    assert abs(third.previous.last_step - third.restore.step) <= FEW
    assert after.losses.furthest_from(calm.losses) <= FP32_BOUND


@local_only
def test_both_nodes_at_once_are_too_many_and_the_durable_checkpoint_is_there(
    calm: Told, tmp_path: Path
) -> None:
    def story(line: Line) -> None:
        line.wait_for_step(60)
        nodes = [line.node_of(slot=slot) for slot in (0, 1)]
        for node in nodes:
            line.kill_node(node)
        for node in nodes:
            line.start_node(node)
        line.wait_for(lambda now: now.epoch >= 2, "a new epoch")

    changes = {**TWO_HALVES, "checkpoint__durable": {"intervalSteps": 25, "keepLast": 3}}
    after = told(tmp_path, story, steps=STEPS, **changes)
    assert after.sources[-1] is RestoreSource.DURABLE
    assert after.losses.furthest_from(calm.losses) == 0.0
