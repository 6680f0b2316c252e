"""When an epoch begins and ends, with model agents and a clock that is moved by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.operator.membership_records import UID, a_revision
from tests.operator.membership_world import World

from trainingrun.protocol.messages import AgentPhase, DirectiveKind, DurableCheckpoint
from trainingrun.protocol.records import RestoreSource, Trigger


def test_the_first_epoch_starts_at_once_when_the_largest_size_is_ready():
    world = World(sizes=(1, 2, 3)).with_agents(3)
    assert world.pass_until(lambda: world.records.made) < 0.5
    assert (world.epoch.trigger, world.epoch.name) == (Trigger.STARTED, "story-e1")
    assert [member.slot for member in world.epoch.members] == [0, 1, 2]
    assert world.epoch.restore.source is RestoreSource.INITIAL
    assert (world.epoch.store.host, world.epoch.store.port, world.epoch.store.prefix) == (
        "10.0.0.0",
        4000,
        "e1/",
    )


def test_the_first_epoch_waits_for_more_nodes_and_then_starts_with_fewer():
    world = World(sizes=(2, 3)).with_agents(2)
    world.pass_time(5)
    assert not world.records.made
    assert "2 of 3 nodes are ready; starting with fewer after 10 s" in world.service.view.waiting_for
    world.pass_time(6)
    assert world.epoch.rung.nodes == 2


def test_no_epoch_below_the_smallest_useful_size_however_long():
    world = World(sizes=(2, 3)).with_agents(1)
    world.agent(1, warm_seconds=1e9)
    world.pass_time(60)
    assert not world.records.made
    assert world.service.view.waiting_for == "1 of minNodes 2 are ready: slot 1 is Preparing"


def test_a_size_that_is_not_useful_is_never_chosen():
    world = World(sizes=(1, 2, 3), useless=(3,)).with_agents(3)
    world.pass_time(3)
    assert world.epoch.rung.nodes == 2
    assert world.agents[2].directive.kind is DirectiveKind.WAIT
    world.pass_time(20)
    assert world.epoch.epoch == 1


def test_a_dead_rank_starts_a_new_epoch_at_once_from_memory():
    world = World().running(2)
    step = world.agents[0].step
    world.agents[1].rank_dies(message="ValueError: nan")
    assert world.pass_until(lambda: world.epoch.epoch == 2) <= 0.3
    record = world.epoch
    assert (record.trigger, record.restore.source, record.restore.step) == (
        Trigger.PROCESS_DIED,
        RestoreSource.MEMORY,
        step,
    )
    assert [rank_exit.message for rank_exit in record.exits if rank_exit.slot == 1] == ["ValueError: nan"]
    assert record.previous.epoch == 1 and record.previous.last_step > 0
    assert record.lost == () and record.shares_member


def test_a_killed_node_is_named_as_lost_though_ranks_of_survivors_died_first():
    world = World(sizes=(1, 2, 3)).running(3)
    died_at = world.clock.wall()
    world.agents[2].kill()
    took = world.pass_until(lambda: world.epoch.epoch == 2)
    record = world.epoch
    assert took <= 0.4 + 0.15 + 0.15
    assert record.trigger is Trigger.MEMBER_LOST
    assert [(lost.slot, lost.reason) for lost in record.lost] == [(2, "ConnectionClosed")]
    assert {rank_exit.slot for rank_exit in record.exits} == {0, 1}
    assert [member.slot for member in record.members] == [0, 1]
    assert record.detected_at - died_at == pytest.approx(0.0, abs=0.11)


def test_losses_in_a_burst_are_one_change():
    world = World(sizes=(1, 2, 3, 4)).running(4)
    for agent in world.agents.values():
        agent.exits = ()
    world.agents[3].talks = world.agents[2].talks = False
    world.agents[2].report_at = world.agents[3].report_at = 0
    world.pass_until(lambda: world.epoch.epoch == 2)
    assert {lost.slot for lost in world.epoch.lost} == {2, 3}
    assert {lost.reason for lost in world.epoch.lost} == {"Silent"}


def test_a_lost_node_is_replaced_by_a_new_incarnation_which_joins_when_the_epoch_has_stepped():
    world = World(hold=1.0).running(2)
    world.agents[1].replaced().warm_seconds = 3
    world.pass_until(lambda: world.epoch.epoch == 2)
    assert world.epoch.rung.nodes == 1
    world.pass_until(lambda: world.epoch.epoch == 3)
    record = world.epoch
    assert (record.trigger, record.rung.nodes) == (Trigger.JOINED, 2)
    assert record.restore.source is RestoreSource.MEMORY
    assert record.restore.step == record.previous.last_step, "growth loses no step"
    assert record.exits == () and record.lost == ()
    assert (record.members[1].slot, record.members[1].incarnation) == (1, 1)


def test_growth_waits_for_the_first_step_and_for_the_hold():
    world = World(hold=4.0)
    world.agent(0, steps=False)
    world.pass_time(12)
    world.agent(1)
    world.pass_time(10)
    assert world.epoch.epoch == 1
    assert "when epoch 1 has reached its first step" in world.service.view.waiting_for
    world.agents[0].steps = True
    took = world.pass_until(lambda: world.epoch.epoch == 2)
    assert 4.0 <= took <= 5.2


def test_a_pause_that_takes_too_long_becomes_a_stop():
    world = World(hold=0.0)
    slow = world.agent(0)
    world.pass_time(12)
    slow.obeys = False
    world.agent(1)
    world.pass_time(5)
    assert world.service.view.waiting_for.startswith("Pausing epoch 2")
    world.pass_time(26)
    slow.obeys = True
    world.pass_until(lambda: world.epoch.epoch == 2, limit=3)
    assert world.epoch.trigger is Trigger.JOINED


def test_a_member_lost_during_a_pause_makes_the_change_involuntary():
    world = World(sizes=(1, 2, 3), hold=0.0)
    world.with_agents(2)
    world.pass_time(14)
    world.agents[1].obeys = False
    world.agent(2)
    world.pass_until(lambda: world.service.view.proposing)
    world.agents[1].kill()
    world.pass_until(lambda: world.epoch.epoch == 2)
    assert world.epoch.trigger is Trigger.MEMBER_LOST
    assert [member.slot for member in world.epoch.members] == [0, 2]


def test_the_newcomer_that_vanishes_during_the_pause_costs_only_the_pause():
    world = World(hold=0.0)
    world.agent(0)
    world.pass_time(12)
    world.agents[0].obeys = False
    world.agent(1)
    world.pass_until(lambda: world.service.view.proposing)
    world.agents[1].kill()
    world.pass_time(1)
    world.agents[0].obeys = True
    world.pass_until(lambda: world.epoch.epoch == 2)
    assert [member.slot for member in world.epoch.members] == [0]


def test_a_silent_acknowledger_is_left_out_and_a_new_proposal_made():
    world = World(sizes=(1, 2, 3)).running(3)
    world.agents[2].obeys = False
    world.agents[0].rank_dies()
    nonce = None

    def proposed() -> bool:
        nonlocal nonce
        nonce = nonce or world.agents[0].prepared
        return world.epoch.epoch == 2

    took = world.pass_until(proposed)
    assert 10.0 <= took <= 11.0
    assert world.epoch.nonce != nonce
    assert [(lost.slot, lost.reason) for lost in world.epoch.lost] == [(2, "Unresponsive")]
    world.agents[2].obeys = True
    world.pass_time(20)
    assert [member.slot for member in world.epoch.members] == [0, 1, 2], "it may come back"


def test_a_member_that_restarts_is_lost_at_once_and_its_old_process_is_refused():
    world = World().running(2)
    old = world.agents[1]
    world.agents[1] = old
    new = old.restart()
    world.pass_until(lambda: world.epoch.epoch == 2)
    assert [(lost.slot, lost.reason) for lost in world.epoch.lost] == [(1, "Restarted")]
    old.alive = True
    old.talk()
    assert old.refusal is not None and old.refusal.code == "StaleIncarnation"
    assert new.refusal is None


def test_below_the_smallest_size_nothing_starts_until_more_join():
    world = World(sizes=(2,)).running(2)
    world.agents[1].kill()
    world.pass_time(30)
    assert world.epoch.epoch == 1
    assert world.service.view.waiting_for.startswith("1 of minNodes 2 are ready")
    world.agents[1].replaced()
    world.pass_until(lambda: world.epoch.epoch == 2)
    assert [lost.reason for lost in world.epoch.lost] == ["ConnectionClosed"]
    assert world.epoch.restore.source is RestoreSource.MEMORY


def test_when_all_members_restart_the_run_waits_a_little_for_its_former_size():
    world = World(sizes=(1, 2, 3)).running(3)
    agents = list(world.agents.values())
    for agent in agents:
        agent.kill()
    for delay, agent in zip((0.5, 2.0, 4.0), agents, strict=True):
        agent.restart().warm_seconds = delay
    world.pass_until(lambda: world.epoch.epoch == 2)
    assert world.epoch.rung.nodes == 3
    assert not world.epoch.shares_member, "nobody is left who could vouch that the old writers are dead"


def test_an_epoch_that_never_stepped_hands_its_fence_on():
    world = World(sizes=(1,)).running(1)
    world.agents[0].kill()
    agent = world.agents[0].restart()
    agent.steps = False
    world.pass_until(lambda: world.epoch.epoch == 2 and agent.epoch == 2)
    agent.rank_dies()
    world.pass_until(lambda: world.epoch.epoch == 3 and agent.epoch == 3)
    assert [record.shares_member for record in world.records.epochs(UID)] == [True, False, False]
    agent.steps = True
    world.pass_time(3.0)
    agent.rank_dies()
    world.pass_until(lambda: world.epoch.epoch == 4)
    assert world.epoch.shares_member, "the epoch before trained, so it had written its fence"


def test_ranks_that_die_again_and_again_without_progress_are_backed_off():
    world = World(sizes=(1,))
    agent = world.agent(0, steps=False)
    gaps = []
    for number in range(1, 8):
        gaps.append(world.pass_until(lambda number=number: agent.epoch == number))
        agent.rank_dies()
    assert gaps[1] < 0.5 and gaps[2] < 0.5
    assert gaps[3:] == pytest.approx([1, 2, 4, 8], abs=0.5)
    assert "backing off" in world.pass_time(1).service.view.waiting_for
    world.pass_until(lambda: agent.epoch == 8)
    agent.steps = True
    world.pass_time(2)
    agent.rank_dies()
    assert world.pass_until(lambda: agent.epoch == 9) < 0.5, "progress resets it"


def test_a_damaged_checkpoint_is_not_used_again_and_the_one_before_is():
    world = World(sizes=(1,))
    agent = world.agent(0)
    world.durable = [DurableCheckpoint(f"step-{s:08d}.e0001", 1, s) for s in (100, 200)]
    world.pass_until(lambda: agent.epoch == 1)
    assert world.epoch.restore.manifest == "step-00000200.e0001"
    agent.rank_dies(exit_code=65, damaged="step-00000200.e0001")
    world.pass_until(lambda: agent.epoch == 2)
    record = world.epoch
    assert (record.trigger, record.damaged) == (Trigger.RESTORE_FAILED, ("step-00000200.e0001",))
    assert record.restore.step == 100
    agent.rank_dies(exit_code=65, damaged="step-00000100.e0001")
    world.pass_time(10)
    assert world.epoch.epoch == 2
    assert world.service.view.blocked.startswith("NoUsableCheckpoint: checkpoints were committed at ")
    world.save(1, 300)
    world.pass_until(lambda: agent.epoch == 3)
    assert world.service.view.blocked == ""
    assert world.epoch.damaged == ("step-00000100.e0001", "step-00000200.e0001")


def test_a_run_without_any_checkpoint_restarts_from_the_beginning_and_the_record_shows_it():
    world = World().running(2)
    for agent in world.agents.values():
        agent.held = ()
        agent.replaced()
    world.pass_until(lambda: world.epoch.epoch == 2)
    assert world.epoch.restore.source is RestoreSource.INITIAL
    assert world.epoch.previous.last_step > 0


def test_checkpoints_that_vanished_block_the_run():
    world = World(sizes=(1,)).running(1, seconds=12, saves_every=4)
    assert world.durable
    world.pass_time(2)
    world.durable = []
    world.agents[0].replaced()
    world.pass_time(30)
    assert world.epoch.epoch == 1
    assert "not there any more" in world.service.view.blocked


def test_checkpoints_that_vanished_block_a_run_even_if_membership_was_away_meanwhile():
    for status_knows in (True, False):  # or else the mark at the location does
        world = World(sizes=(1,)).running(1, seconds=12, saves_every=4)
        world.records.saved = world.durable[-1] if status_knows else None
        world.committed = not status_knows
        world.durable = []
        world.agents[0].kill()
        world.service.start()  # it remembers nothing
        world.agents[0].replaced().saves_every = 0
        world.pass_time(30)
        assert world.epoch.epoch == 1
        assert world.service.view.blocked.startswith("NoUsableCheckpoint")


def test_when_rank_0_is_done_the_others_leave_and_its_going_away_is_no_loss():
    world = World().running(2)
    world.agents[0].phase = AgentPhase.DONE
    world.pass_time(0.5)
    assert world.agents[1].directive.kind is DirectiveKind.LEAVE
    assert world.agents[1].directive.reason == "Complete"
    assert world.agents[1].directive.epoch == 1
    world.agents[0].alive = False
    world.pass_time(30)
    assert world.epoch.epoch == 1


def test_rank_0_that_vanishes_before_it_said_done_is_a_loss_and_the_done_are_prepared_again():
    world = World().running(2)
    world.agents[1].phase = AgentPhase.DONE
    world.pass_time(0.5)
    world.agents[0].kill()
    world.pass_until(lambda: world.epoch.epoch == 2)
    assert world.agents[1].slot in [member.slot for member in world.epoch.members]
    assert [lost.slot for lost in world.epoch.lost] == [0]


def test_the_record_is_of_the_newest_revision():
    world = World(sizes=(1,)).running(1, seconds=12)
    world.records.revision_list.append(replace(a_revision((1,)), name="story-r2", revision=2))
    world.service.refresh()
    world.agents[0].replaced()
    world.pass_until(lambda: world.epoch.epoch == 2)
    assert world.epoch.revision == "story-r2"


def test_growth_that_finds_nothing_to_restore_from_stays_a_growth_and_starts_nothing_old():
    world = World(hold=0.0, pause_deadline_seconds=1.0)
    agent = world.agent(0, saves_every=2)
    world.pass_time(12)
    agent.obeys = False
    world.agent(1)
    world.pass_time(2.5)  # the pause is over its time: the ranks are stopped
    agent.held, agent.saves_every, world.durable = (), 0, []
    agent.obeys, agent.steps = True, False
    world.pass_time(3)
    assert agent.phase is AgentPhase.IDLE
    assert world.service.view.blocked
    assert agent.directive.kind is DirectiveKind.PREPARE, "never told to start what it has stopped"
    world.save(1, 6)
    world.pass_until(lambda: world.epoch.epoch == 2)
    assert (world.epoch.trigger, world.epoch.exits) == (Trigger.JOINED, ())
