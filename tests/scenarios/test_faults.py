"""Faults on the whole line, with real processes: after each the run completes as if nothing had happened.

All runs but the float64 ones train the same thing for different times, so one undisturbed run is the measure of all.
"""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path

import pytest
from tests.scenarios.line import Line
from tests.scenarios.lines import uri_of
from tests.scenarios.story import FP32_BOUND, FP64_BOUND, Told, told, undisturbed

from trainingrun.protocol.records import RestoreSource, Trigger

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]

LONG = 700  # steps: long enough for a node to come back, or for half a minute without membership


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return told(tmp_path_factory.mktemp("calm"), undisturbed, steps=LONG)


def test_an_undisturbed_run_is_one_epoch_and_exports(calm: Told) -> None:
    assert calm.triggers == [Trigger.STARTED]
    assert calm.end.status["disruptions"].get("lostSteps", 0) == 0
    assert calm.losses.by_step[LONG] < calm.losses.by_step[1] - 1.0
    export = calm.folder / "models" / "scenario"
    assert calm.end.status["output"]["export"] == uri_of(export)
    assert (export / "model.safetensors").exists()


def test_a_killed_rank_costs_no_more_than_the_steps_since_the_snapshot(calm: Told, tmp_path: Path) -> None:
    def story(line: Line) -> None:
        line.wait_for_step(40)
        line.kill_rank(slot=1, local_rank=0)

    after = told(tmp_path, story)
    assert after.triggers == [Trigger.STARTED, Trigger.PROCESS_DIED]
    assert after.sources[1] is RestoreSource.MEMORY
    assert after.losses.furthest_from(calm.losses) == 0.0  # the sizes did not change


def test_a_killed_agent_is_restarted_in_place(calm: Told, tmp_path: Path) -> None:
    def story(line: Line) -> None:
        line.wait_for_step(40)
        line.kill_agent(slot=0)
        line.wait_for(lambda now: now.epoch > 1, "a new epoch")

    after = told(tmp_path, story)
    assert after.triggers[1] is Trigger.MEMBER_LOST
    # One kill is no crash loop, and its node is well, so nothing calls for another pod: not even when the run is over
    # before the container is back, or before it is taken in again.
    assert {pod.incarnation for pod in after.end.pods} == {0}
    assert after.losses.furthest_from(calm.losses) <= FP32_BOUND


def test_a_killed_node_that_comes_back_is_taken_in_again(calm: Told, tmp_path: Path) -> None:
    def story(line: Line) -> None:
        line.wait_for_step(40)
        node = line.node_of(slot=1)
        line.kill_node(node)
        line.wait_for(lambda now: now.members == 1 and now.step > 40, "steps at the smaller size")
        line.start_node(node)
        line.wait_for(lambda now: now.members == 2, "both nodes in an epoch")

    after = told(tmp_path, story, steps=LONG)
    assert after.sizes == [2, 1, 2]
    assert after.triggers == [Trigger.STARTED, Trigger.MEMBER_LOST, Trigger.JOINED]
    assert after.sources[1:] == [RestoreSource.MEMORY, RestoreSource.MEMORY]
    # Growing is planned: the ranks agree on a step, and none is lost.
    assert after.epochs[2].previous.last_step == after.epochs[2].restore.step
    assert after.losses.furthest_from(calm.losses) <= FP32_BOUND


def test_a_survivor_of_three_hands_its_state_to_both_replacements(tmp_path: Path) -> None:
    def story(line: Line) -> None:
        line.wait_for(lambda now: now.members == 3 and now.step > 20, "three nodes that train")
        nodes = [line.node_of(slot) for slot in (0, 1)]
        for node in nodes:
            line.kill_node(node)
        line.wait_for(lambda now: now.members == 1, "the survivor alone")
        for node in nodes:
            line.start_node(node)
        line.wait_for(lambda now: now.members == 3, "three nodes in an epoch again")

    # One process a node: 8 sequences do not divide so well by 6 that a third node of two would be of use. Its steps are
    # the shortest of all, and it takes many until both are back.
    after = told(tmp_path, story, steps=3 * LONG, nodes=3, scale__maxNodes=3, resources__processesPerNode=1)
    assert (after.sizes[0], min(after.sizes), after.sizes[-1]) == (3, 1, 3)
    assert set(after.triggers[1:]) == {Trigger.MEMBER_LOST, Trigger.JOINED}
    assert set(after.sources[1:]) == {RestoreSource.MEMORY}
    assert not after.epochs[-1].damaged
    grown = [epoch for epoch in after.epochs if epoch.trigger is Trigger.JOINED]
    assert all(epoch.previous.last_step == epoch.restore.step for epoch in grown)


def test_the_first_node_of_the_ranks_may_be_the_one_that_dies_for_good(calm: Told, tmp_path: Path) -> None:
    def story(line: Line) -> None:
        line.wait_for_step(40)
        line.kill_node(line.node_of(slot=0))
        line.wait_for(lambda now: now.members == 1, "the survivor alone")

    after = told(tmp_path, story)
    assert after.sizes == [2, 1]
    assert after.losses.furthest_from(calm.losses) <= FP32_BOUND


def test_in_float64_a_lost_node_leaves_the_losses_where_they_were(tmp_path: Path) -> None:
    def story(line: Line) -> None:
        line.wait_for_step(40)
        line.kill_node(line.node_of(slot=1))
        line.wait_for(lambda now: now.members == 1, "the survivor alone")

    falling = {"name": "Cosine", "warmupPermille": 100, "minLearningRatePermille": 100}
    changes = {"training__precision": "FP64", "training__schedule": falling}
    steady = told(tmp_path / "calm", undisturbed, **changes)
    after = told(tmp_path / "fault", story, **changes)
    assert after.sizes == [2, 1]
    assert after.losses.furthest_from(steady.losses) <= FP64_BOUND


def test_without_membership_training_goes_on_and_recovery_follows_when_it_is_back(
    calm: Told, tmp_path: Path
) -> None:
    def story(line: Line) -> None:
        line.wait_for_step(40)
        line.kill_membership()
        time.sleep(10)
        line.kill_rank(slot=0, local_rank=1)
        time.sleep(20)
        line.start_membership()
        line.wait_for(lambda now: now.epoch == 2, "the recovery")

    after = told(tmp_path, story, steps=LONG)
    assert after.triggers == [Trigger.STARTED, Trigger.PROCESS_DIED]
    # It trained through the first ten seconds: what was lost is what the killed rank took with it.
    assert after.epochs[1].restore.step > 60
    assert after.losses.furthest_from(calm.losses) == 0.0


def test_a_stopped_membership_declares_nobody_dead(calm: Told, tmp_path: Path) -> None:
    def story(line: Line) -> None:
        line.wait_for_step(40)
        line.stop_membership()
        time.sleep(30)
        line.continue_membership()
        line.wait_for(lambda now: now.over or (now.view is not None and now.step > 40), "news after the stop")

    after = told(tmp_path, story, steps=LONG)
    assert after.triggers == [Trigger.STARTED]
    assert after.losses.furthest_from(calm.losses) == 0.0


def test_a_controller_killed_at_random_moments_changes_nothing(calm: Told, tmp_path: Path) -> None:
    dice = random.Random(4)

    def story(line: Line) -> None:
        rank_killed, killed = False, 0
        while killed < 10 or not rank_killed:  # how soon the run trains is the machine's affair
            time.sleep(dice.uniform(0.1, 1.5))
            line.kill_controller()
            killed += 1
            if not rank_killed and line.moment().step >= 1:  # as soon as it trains: nobody is there to see it
                line.wait_for_step(20)
                line.kill_rank(slot=1, local_rank=1)
                rank_killed = True
            time.sleep(dice.uniform(0.0, 0.4))
            line.start_controller()
            assert killed < 100, "the run never trains"

    after = told(tmp_path, story, steps=LONG)
    assert after.triggers == [Trigger.STARTED, Trigger.PROCESS_DIED]
    assert after.losses.furthest_from(calm.losses) == 0.0


def test_both_ranks_of_a_node_and_the_other_node_dying_at_once_are_survived(
    calm: Told, tmp_path: Path
) -> None:
    def story(line: Line) -> None:
        line.wait_for_step(40)
        node = line.node_of(slot=1)
        line.kill_rank(slot=0, local_rank=0)
        with contextlib.suppress(LookupError):  # its agent may have ended it already
            line.kill_rank(slot=0, local_rank=1)
        line.kill_node(node)
        line.wait_for(lambda now: now.members == 1, "the survivor alone")

    after = told(tmp_path, story)
    assert after.losses.furthest_from(calm.losses) <= FP32_BOUND


def test_when_no_node_holds_a_whole_copy_a_lost_node_restores_from_the_durable_checkpoint(
    calm: Told, tmp_path: Path
) -> None:
    def story(line: Line) -> None:
        line.wait_for_step(60)
        node = line.node_of(slot=1)
        line.kill_node(node)
        line.start_node(node)
        line.wait_for(lambda now: now.epoch >= 2, "a new epoch")

    # Pipeline 2 over two nodes of one process: each node holds half of the state.
    after = told(
        tmp_path,
        story,
        parallelism__axes={"pipeline": 2},
        resources__processesPerNode=1,
        scale__minNodes=2,
        checkpoint__memory__copies=1,
    )
    assert after.sources[1] is RestoreSource.DURABLE
    assert after.sizes == [2, 2]
    assert after.losses.furthest_from(calm.losses) <= FP32_BOUND
