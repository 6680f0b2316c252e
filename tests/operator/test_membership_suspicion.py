"""Who counts as lost, and when the service doubts itself instead."""

from __future__ import annotations

import pytest
from tests.operator.membership_agents import ModelAgent
from tests.operator.membership_world import Service, World

from trainingrun.membership.errors import ProtocolMismatch, StaleIncarnation, UnknownSession
from trainingrun.membership.settings import Settings, SettingsError
from trainingrun.protocol.messages import AgentPhase, DirectiveKind, JoinRequest, Poll


def quiet(*agents: ModelAgent) -> None:
    for agent in agents:
        agent.talks = False


def test_a_member_that_is_silent_for_two_seconds_is_lost():
    world = World().running(2)
    quiet(world.agents[1])
    took = world.pass_until(lambda: world.epoch.epoch == 2)
    assert 1.7 <= took <= 2.6
    assert [(lost.slot, lost.reason) for lost in world.epoch.lost] == [(1, "Silent")]


def test_a_member_that_says_goodbye_is_lost_at_once():
    world = World().running(2)
    world.agents[1].leaves()
    took = world.pass_until(lambda: world.epoch.epoch == 2)
    assert took <= 0.3
    assert [(lost.slot, lost.reason) for lost in world.epoch.lost] == [(1, "Left")]


def test_one_that_said_goodbye_is_not_seated_again():
    world = World().running(2)
    agent = world.agents[1]
    agent.leaves()
    world.service.state.connection_closed(agent.session, world.clock.now())
    with pytest.raises(StaleIncarnation):
        world.service.state.poll(Poll(agent.session, 1, 0), world.clock.now())
    agent.joined = False
    with pytest.raises(StaleIncarnation):
        agent.join()
    assert agent.replaced().session in {"s1-1-0"}
    world.pass_until(lambda: len(world.epoch.members) == 2, limit=20)


def test_a_closed_connection_is_no_loss_when_the_member_is_heard_again():
    world = World().running(2)
    for _ in range(20):
        world.service.state.connection_closed(world.agents[1].session, world.clock.now())
        world.pass_time(0.3)
    assert world.epoch.epoch == 1


def test_nobody_is_lost_during_the_grace_after_the_services_own_start():
    world = World().with_agents(2)
    world.pass_time(0.5)
    quiet(world.agents[1])
    world.pass_time(3.0)
    assert world.epoch.epoch == 1
    assert world.service.view.suspicious_of_self
    world.pass_until(lambda: world.epoch.epoch == 2, limit=2)


def test_a_stop_of_the_service_itself_loses_nobody():
    world = World().running(2)
    for seconds in (1.5, 30.0, 3600.0):
        world.service_stopped(seconds)
        world.pass_time(0.1)
        assert world.service.view.suspicious_of_self
        world.pass_time(10)
        assert not world.service.view.suspicious_of_self
    assert world.epoch.epoch == 1
    assert any("was away for 30." in note for note in world.service.notes)


def test_a_stop_of_the_service_while_it_proposes_drops_nobody():
    world = World(sizes=(1, 2, 3)).running(3)
    for agent in world.agents.values():
        agent.obeys = False
    world.agents[0].rank_dies()
    world.pass_until(lambda: world.service.view.proposing)
    world.service_stopped(30)
    world.pass_time(2)
    for agent in world.agents.values():
        agent.obeys = True
    world.pass_until(lambda: world.epoch.epoch == 2, limit=2)
    assert world.epoch.lost == ()
    assert world.epoch.rung.nodes == 3


def test_when_all_fall_silent_at_once_the_service_doubts_itself_and_goes_on_with_them():
    world = World(sizes=(1, 2, 3)).running(3)
    quiet(*world.agents.values())
    world.pass_time(5)
    assert world.service.view.suspicious_of_self
    for agent in world.agents.values():
        agent.talks = True
        agent.report_at = world.clock.now() + 0.3 * agent.slot  # they do not come back together
    world.pass_time(10)
    assert world.epoch.epoch == 1
    assert not world.service.view.suspicious_of_self


def test_all_connections_closed_at_once_are_the_services_own_fault_at_first():
    world = World(sizes=(1, 2)).running(2)
    quiet(*world.agents.values())
    for agent in world.agents.values():
        world.service.state.connection_closed(agent.session, world.clock.now())
    world.pass_time(3)
    assert len(world.service.view.members) == 2
    world.pass_time(8)
    assert world.service.view.members == (), "at last it is believed"


def test_a_single_member_needs_no_second_opinion():
    world = World(sizes=(1,)).running(1, seconds=12)
    quiet(world.agents[0])
    world.pass_time(2.5)
    assert world.service.view.members == ()


def test_a_member_that_was_only_late_is_carried_on_with():
    world = World(sizes=(1,)).running(1, seconds=12)
    agent = world.agents[0]
    quiet(agent)
    world.pass_time(5)
    agent.talks = True
    world.pass_time(5)
    assert world.epoch.epoch == 1
    assert agent.phase is AgentPhase.RUNNING
    assert world.service.view.waiting_for == ""


def test_training_goes_on_over_a_restart_of_the_service():
    world = World().running(2)
    step = world.agents[0].step
    world.service_stopped(30, agents_go_on=True)
    world.service.start()
    world.pass_time(20)
    assert world.epoch.epoch == 1
    assert world.agents[0].step > step + 100
    assert all(member.in_epoch for member in world.service.view.members)


def test_a_rank_that_died_while_the_service_was_away_is_recovered_with_all_members():
    world = World(sizes=(1, 2, 3)).running(3)
    world.service.alive = False
    world.agents[0].rank_dies()
    world.pass_time(10)
    world.service.start()
    for agent in world.agents.values():
        agent.report_at = world.clock.now() + 0.7 * agent.slot
    world.pass_until(lambda: world.epoch.epoch == 2, limit=3)
    assert world.epoch.rung.nodes == 3
    assert (world.epoch.trigger.value, world.epoch.lost) == ("ProcessDied", ())


def test_a_member_that_never_comes_back_after_a_restart_of_the_service_is_lost_after_the_grace():
    world = World().running(2)
    world.service.alive = False
    world.pass_time(1)
    world.agents[1].alive = False
    world.ranks_lost(world.agents[1])
    world.service.start()
    assert 3.9 <= world.pass_until(lambda: world.epoch.epoch == 2) <= 4.8
    assert [(lost.slot, lost.reason) for lost in world.epoch.lost] == [(1, "Silent")]


def test_a_restart_between_record_and_start_still_starts_the_epoch():
    world = World().running(2)
    for agent in world.agents.values():
        agent.obeys = False
    world.agents[0].rank_dies()
    for agent in world.agents.values():
        agent.prepared = "m2"
    world.pass_until(lambda: world.epoch.epoch == 2)
    assert world.agents[0].epoch == 1
    world.service.start()
    for agent in world.agents.values():
        agent.obeys, agent.joined = True, False
    world.pass_time(3)
    assert world.epoch.epoch == 2
    assert {agent.epoch for agent in world.agents.values()} == {2}


def test_a_restart_in_the_middle_of_a_proposal_makes_a_new_one():
    world = World(sizes=(1, 2)).running(2)
    world.agents[1].obeys = False
    world.agents[0].rank_dies()
    world.pass_until(lambda: world.agents[0].prepared)
    world.service.start()
    world.agents[1].obeys = True
    world.pass_until(lambda: world.epoch.epoch == 2, limit=5)
    assert world.epoch.rung.nodes == 2


def test_a_restart_during_a_pause_finishes_the_change():
    world = World(hold=0.0)
    world.agent(0)
    world.pass_time(12)
    world.agent(1)
    world.pass_until(lambda: world.agents[0].phase is AgentPhase.PAUSED)
    world.service.start()
    world.pass_until(lambda: world.records.newest.epoch == 2, limit=10)
    world.pass_time(10)
    assert world.agents[0].phase is AgentPhase.RUNNING and world.agents[1].phase is AgentPhase.RUNNING


def test_directives_of_a_restarted_service_are_newer_than_what_the_agent_has_seen():
    world = World(sizes=(1,)).running(1, seconds=12)
    agent = world.agents[0]
    world.service.start()
    agent.join()
    directive = world.service.state.poll(Poll(agent.session, 0, seen=41), world.clock.now())
    assert directive.seq == 42
    assert directive.kind is DirectiveKind.START


def test_an_older_incarnation_is_refused_even_after_a_restart_of_the_service():
    world = World(sizes=(1,))
    world.agent(0, incarnation=3)
    world.pass_time(12)
    world.service.start()
    with pytest.raises(StaleIncarnation, match="incarnation 2 was replaced by 3"):
        world.agent(0, incarnation=2).join()


def test_an_agent_of_another_protocol_is_refused():
    world = World()
    request = JoinRequest((7, 9), 0, 0, "p", "s", "n", "a", 1, 2, 2, "cpu")
    with pytest.raises(ProtocolMismatch, match="agent speaks protocol 7-9, this service 1-1"):
        world.service.state.join(request, 0.0, 0.0)


def test_an_unknown_session_is_asked_to_join_again():
    world = World().running(2)
    with pytest.raises(UnknownSession):
        world.service.state.poll(Poll("nobody", 0, 0), world.clock.now())


def test_a_record_whose_reply_was_lost_is_ours_all_the_same():
    world = World()
    world.records.lose_replies = 1
    world.with_agents(2)
    world.pass_time(3)
    assert world.epoch.epoch == 1
    assert world.agents[0].phase is AgentPhase.RUNNING
    assert not any("another instance" in note for note in world.service.notes)


def test_records_that_are_away_delay_an_epoch_and_nothing_else():
    world = World().running(2)
    world.records.unavailable = True
    world.agents[0].rank_dies()
    world.pass_time(20)
    assert world.service.view.proposing
    world.records.unavailable = False
    world.pass_until(lambda: world.epoch.epoch == 2, limit=1)


def test_a_record_that_is_refused_is_tried_ever_more_slowly_and_the_reason_is_shown():
    world = World().running(2)
    world.records.refusal, world.records.tries = "exceeded quota: objects", 0
    world.agents[0].rank_dies()
    world.pass_time(60)
    assert world.service.view.waiting_for == "the record of epoch 2 is refused: exceeded quota: objects"
    assert 5 <= world.records.tries <= 10
    world.records.refusal = ""
    world.pass_until(lambda: world.epoch.epoch == 2, limit=world.settings.refused_cap_seconds + 1)
    assert world.service.view.waiting_for == ""


def test_an_epoch_made_by_another_instance_is_adopted():
    world = World().running(2)
    mine = world.service
    world.service = Service(
        world, "other", first_seq=1 << 20
    )  # hears the agents while this one is cut off from them
    for agent in world.agents.values():
        agent.joined = False
    world.pass_time(5)
    world.agents[0].rank_dies()
    world.pass_until(lambda: world.epoch.epoch == 2)
    assert world.epoch.nonce.startswith("other")
    world.service = mine
    mine.state.tick(world.clock.now(), world.clock.wall())
    for agent in world.agents.values():
        agent.joined = False
    mine.refresh()
    world.pass_time(10)
    assert world.epoch.epoch == 2
    assert mine.view.epoch == 2 and all(member.in_epoch for member in mine.view.members)


def test_ranks_of_an_epoch_that_was_overtaken_are_stopped():
    world = World(sizes=(1, 2), hold=1000.0).running(2)
    agent = world.agents[1]
    quiet(agent)
    world.agents[0].rank_dies()
    agent.phase = AgentPhase.RUNNING  # its ranks hang in a collective
    world.pass_until(lambda: world.epoch.epoch == 2, limit=15)
    agent.talks = True
    world.pass_time(1)
    assert agent.phase is AgentPhase.IDLE
    assert agent.directive.kind is DirectiveKind.WAIT


def test_a_run_that_is_gone_tells_its_members_to_leave():
    world = World().running(2)
    world.service.state.run_gone()
    directive = world.service.state.directive(world.agents[0].session)
    assert (directive.kind, directive.reason) == (DirectiveKind.LEAVE, "RunGone")


def test_settings_that_cannot_work_together_are_refused_with_the_fix():
    with pytest.raises(SettingsError, match=r"closed_grace_seconds is 0.2: must be above report_seconds"):
        Settings(closed_grace_seconds=0.2)
    with pytest.raises(SettingsError, match=r"silence_seconds is 0.5: must be at least 4 x report_seconds"):
        Settings(silence_seconds=0.5)
