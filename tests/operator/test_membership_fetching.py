"""A transfer of the state between members that fails: what is held in memory stays the restore point."""

from __future__ import annotations

import pytest
from tests.operator.membership_world import World

from trainingrun.protocol.exit_codes import ExitCode
from trainingrun.protocol.records import Epoch, RankExit, RestoreSource, Trigger


def two_of_three_are_replaced() -> World:
    """Three train, two pods are deleted at once, the third goes on alone, and the run grows back: epoch 3 has just
    begun. An older checkpoint is at the location all the while.
    """
    world = World(sizes=(1, 2, 3), hold=1.0).running(3)
    world.save(1, 4)
    for slot in (1, 2):
        world.agents[slot].leaves()
        world.agents[slot].replaced().warm_seconds = 2.0
    world.pass_until(lambda: world.epoch.rung.nodes == 1)
    world.pass_until(lambda: world.epoch.rung.nodes == 3)
    world.pass_until(lambda: world.all_running(world.epoch))
    assert world.epoch.epoch == 3 and world.epoch.trigger is Trigger.JOINED
    assert world.epoch.restore.source is RestoreSource.MEMORY and world.epoch.restore.holders == (0,)
    return world


def lost_steps(world: World) -> int:
    """Steps of the survivor that no epoch since then has begun from."""
    return world.records.epochs("uid-1")[2].previous.last_step - world.epoch.restore.step


def same_point(one: Epoch, other: Epoch) -> bool:
    return one.restore == other.restore


def test_a_newcomer_that_could_not_fetch_damages_nothing_and_costs_no_step():
    world = two_of_three_are_replaced()
    grown = world.epoch
    world.agents[1].fetch_fails()
    took = world.pass_until(lambda: world.epoch.epoch == 4)
    again = world.epoch
    assert took < 1.0
    assert (again.trigger, again.damaged, again.lost) == (Trigger.RESTORE_FAILED, (), ())
    assert [(end.slot, end.exit_code) for end in again.exits] == [(1, ExitCode.NOT_FETCHED)]
    assert same_point(again, grown) and lost_steps(world) == 0
    assert [member.slot for member in again.members] == [0, 1, 2]
    assert any("restore failed (nothing is damaged)" in note for note in world.service.notes)
    world.pass_until(lambda: world.agents[0].step > again.restore.step)


def test_transfers_that_fail_again_and_again_are_backed_off_and_never_give_the_snapshot_up():
    world = two_of_three_are_replaced()
    grown, gaps = world.epoch, []
    for number in range(4, 10):
        world.agents[2].fetch_fails()
        gaps.append(world.pass_until(lambda number=number: world.epoch.epoch == number))
        world.pass_until(lambda: world.all_running(world.epoch))
        assert same_point(world.epoch, grown) and world.epoch.damaged == ()
    assert gaps[:2] == pytest.approx([0.1, 0.1], abs=0.4)
    assert gaps[2:] == pytest.approx([1, 2, 4, 8], abs=0.5)
    assert lost_steps(world) == 0
    world.agents[2].fetch_fails()
    assert "the restore failed 7 times in a row" in world.pass_time(1).service.view.waiting_for
    world.pass_until(lambda: world.epoch.epoch == 10)
    world.pass_time(2)
    assert world.agents[0].step > grown.restore.step
    world.agents[2].rank_dies()
    assert world.pass_until(lambda: world.epoch.epoch == 11) < 0.5, "progress resets it"


def test_the_newcomer_that_could_not_fetch_may_go_and_the_survivor_keeps_its_state():
    world = two_of_three_are_replaced()
    grown = world.epoch
    world.agents[1].fetch_fails()
    world.pass_time(0.05)
    for slot in (1, 2):
        world.agents[slot].kill()
    world.pass_until(lambda: world.epoch.rung.nodes == 1)
    assert world.epoch.damaged == () and lost_steps(world) == 0
    assert (world.epoch.restore.epoch, world.epoch.restore.step) == (grown.restore.epoch, grown.restore.step)


def test_a_holder_that_is_lost_during_the_transfer_is_the_reason_and_not_the_snapshot():
    world = two_of_three_are_replaced()
    world.agents[0].kill()
    world.agents[1].fetch_fails("slot 0: connection reset by peer")
    world.pass_until(lambda: world.epoch.epoch == 4)
    record = world.epoch
    assert (record.trigger, record.damaged) == (Trigger.MEMBER_LOST, ())
    assert record.restore.source is RestoreSource.DURABLE, "it did not come back"
    assert [lost.slot for lost in record.lost] == [0]


def test_the_only_holder_is_waited_for_when_its_container_starts_again():
    world = two_of_three_are_replaced()
    grown = world.epoch
    world.agents[0].kill()
    world.pass_time(3)
    assert world.epoch is grown
    assert world.service.view.waiting_for.startswith("the newest state is in the memory of slot 0 only")
    world.agents[0].restart().warm_seconds = 4.0
    world.pass_until(lambda: world.epoch.epoch == 4)
    assert world.epoch.restore == grown.restore and lost_steps(world) == 0
    assert [lost.slot for lost in world.epoch.lost] == [0]
    world.pass_until(lambda: world.all_running(world.epoch))


def test_a_holder_that_is_seated_anew_before_it_counts_as_lost_is_waited_for_too():
    world = two_of_three_are_replaced()
    grown = world.epoch
    world.agents[0].restart().warm_seconds = 4.0
    world.pass_until(lambda: world.epoch.epoch == 4)
    assert world.epoch.restore == grown.restore and lost_steps(world) == 0


@pytest.mark.parametrize("gone", ["for good", "back, but never ready", "another pod", "it said goodbye"])
def test_a_holder_that_does_not_come_back_with_its_memory_is_not_waited_for_long(gone):
    world = two_of_three_are_replaced()
    if gone == "it said goodbye":
        world.agents[0].leaves()
    elif gone == "another pod":
        world.agents[0].replaced().warm_seconds = 100.0
    elif gone == "back, but never ready":
        world.agents[0].restart().warm_seconds = 100.0
    else:
        world.agents[0].kill()
    took = world.pass_until(lambda: world.epoch.epoch == 4)
    expected = {"for good": 5.5, "back, but never ready": 30.2, "another pod": 0.3, "it said goodbye": 0.3}
    assert took == pytest.approx(expected[gone], abs=0.5)
    assert (world.epoch.restore.source, world.epoch.restore.step) == (RestoreSource.DURABLE, 4)


def test_nobody_is_waited_for_while_another_member_holds_the_state_too():
    world = World(sizes=(1, 2)).running(2)
    world.save(1, 1)
    world.agents[1].kill()
    assert world.pass_until(lambda: world.epoch.epoch == 2) < 1.0
    assert world.epoch.restore.source is RestoreSource.MEMORY


def test_a_snapshot_that_arrived_wrong_each_time_is_named_and_not_used_again():
    world = two_of_three_are_replaced()
    name = f"memory:step-{world.epoch.restore.step:08d}.e{world.epoch.restore.epoch:04d}"
    joiner = world.agents[1]
    joiner.fetch_fails()
    joiner.exits = (RankExit(1, 0, ExitCode.CHECKPOINT_DAMAGED, "wrong checksum"),)
    joiner.damaged = (name,)
    world.pass_until(lambda: world.epoch.epoch == 4)
    record = world.epoch
    assert (record.trigger, record.damaged) == (Trigger.RESTORE_FAILED, (name,))
    assert (record.restore.source, record.restore.step) == (RestoreSource.DURABLE, 4)


def test_an_exit_that_names_no_damage_damages_nothing():
    world = two_of_three_are_replaced()
    grown = world.epoch
    joiner = world.agents[1]
    joiner.fetch_fails()
    joiner.exits = (RankExit(1, 0, ExitCode.CHECKPOINT_DAMAGED, "cannot be fetched"),)
    world.pass_until(lambda: world.epoch.epoch == 4)
    assert world.epoch.trigger is Trigger.RESTORE_FAILED
    assert same_point(world.epoch, grown) and world.epoch.damaged == ()
