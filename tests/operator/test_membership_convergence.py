"""Any order of faults converges: random losses, restarts, stops of the service, and two instances at once.

The records are the judge: one record a number, each with the restore point that the one before allows, and
after some quiet one epoch that runs on every live member.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.operator.membership_agents import ModelAgent
from tests.operator.membership_records import UID
from tests.operator.membership_world import Service, World

from trainingrun.protocol.messages import AgentPhase
from trainingrun.protocol.records import Epoch, RestoreSource, Trigger

SIZES = (1, 2, 3)
SLOTS = st.sampled_from(range(len(SIZES)))
WARM = st.sampled_from([0.0, 0.6, 3.0])
THEN = st.sampled_from([0.0, 0.05, 0.3, 1.0, 3.0, 8.0])  # seconds that pass after a fault


class Story(RuleBasedStateMachine):
    @initialize(warm=st.lists(WARM, min_size=3, max_size=3))
    def begin(self, warm: list[float]) -> None:
        self.world = World(sizes=SIZES, hold=0.5)
        self.world.service = Service(self.world, first_seq=1000)
        self.seen: dict[str, Epoch] = {}
        for slot, seconds in enumerate(warm):
            self.world.agent(slot, warm_seconds=seconds, saves_every=5)
        self.world.pass_time(8)

    def agent(self, slot: int) -> ModelAgent:
        return self.world.agents[slot]

    @rule(slot=SLOTS, then=THEN)
    def a_rank_dies(self, slot: int, then: float) -> None:
        if self.agent(slot).alive and self.agent(slot).phase is AgentPhase.RUNNING:
            self.agent(slot).rank_dies()
        self.world.pass_time(then)

    @rule(slot=SLOTS, back=st.sampled_from(["", "agent", "pod"]), warm=WARM, then=THEN)
    def a_node_is_killed_and_perhaps_comes_back(self, slot: int, back: str, warm: float, then: float) -> None:
        if self.agent(slot).alive:
            self.agent(slot).kill()
        if back:
            fresh = self.agent(slot).restart() if back == "agent" else self.agent(slot).replaced()
            fresh.warm_seconds = warm
        self.world.pass_time(then)

    @rule(slot=SLOTS, then=THEN)
    def an_agent_falls_silent_or_talks_again(self, slot: int, then: float) -> None:
        self.agent(slot).talks = not self.agent(slot).talks
        self.world.pass_time(then)

    @rule(slot=SLOTS, then=THEN)
    def an_agent_stops_to_obey_or_obeys_again(self, slot: int, then: float) -> None:
        self.agent(slot).obeys = not self.agent(slot).obeys
        self.world.pass_time(then)

    @rule(then=THEN)
    def the_service_is_killed_and_started(self, then: float) -> None:
        self.world.service.start()
        self.world.pass_time(then)

    @rule(seconds=st.sampled_from([1.5, 30.0]), agents_go_on=st.booleans(), then=THEN)
    def the_service_is_stopped_and_continued(self, seconds: float, agents_go_on: bool, then: float) -> None:
        self.world.service_stopped(seconds, agents_go_on)
        self.world.pass_time(then)

    @rule(count=st.integers(1, 2))
    def replies_of_the_records_are_lost(self, count: int) -> None:
        self.world.records.lose_replies = count

    @rule(seconds=st.sampled_from([0.3, 6.0]))
    def the_records_are_away(self, seconds: float) -> None:
        self.world.records.unavailable = True
        self.world.pass_time(seconds)
        self.world.records.unavailable = False

    @rule(second=st.sets(SLOTS), then=THEN)
    def the_agents_are_split_between_two_instances(self, second: set[int], then: float) -> None:
        world = self.world
        if world.second is None:
            world.second = Service(world, "other", first_seq=1 << 20)
        for slot, agent in world.agents.items():
            agent.via = world.second if slot in second else None
        world.pass_time(then)

    @rule(then=THEN)
    def both_instances_must_make_the_same_epoch(self, then: float) -> None:
        """Each knows all members, and they hear of the same death before either reads the records."""
        world = self.world
        if world.second is None:
            world.second = Service(world, "other", first_seq=1 << 20)
        for side in (world.second, None):
            for agent in world.agents.values():
                agent.via = side
            world.pass_time(0.3)
        running = [agent for agent in world.agents.values() if agent.phase is AgentPhase.RUNNING]
        if running:
            running[0].rank_dies()
        for slot, agent in world.agents.items():
            agent.via = world.second if slot else None
        world.pass_time(then)

    @invariant()
    def the_records_are_sound(self) -> None:
        records = list(self.world.records.epochs(UID))
        assert [record.epoch for record in records] == list(range(1, len(records) + 1))
        for before, record in zip([None, *records], records, strict=False):
            assert self.seen.setdefault(record.name, record) is record, "a record never changes"
            assert len(record.members) == record.rung.nodes == len({member.slot for member in record.members})
            if before is None:
                assert record.trigger is Trigger.STARTED
                continue
            assert record.previous.epoch == before.epoch
            kept = {member.session for member in before.members}
            assert not record.shares_member or any(member.session in kept for member in record.members)
            assert {lost.slot for lost in record.lost} <= {member.slot for member in before.members}
            if record.trigger is Trigger.MEMBER_LOST:
                assert record.lost
            if any(r.previous.durable for r in records[: record.epoch]):
                assert record.restore.source is not RestoreSource.INITIAL, "never silently from step 0"

    def teardown(self) -> None:
        """Quiet: everybody lives, talks and obeys, and reaches the same instance."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.records.lose_replies = 0
        for agent in list(world.agents.values()):
            if not agent.alive or agent.refusal:
                agent = agent.replaced()
            agent.talks = agent.obeys = True
            agent.via = None
        world.pass_time(90)
        live = {agent.session for agent in world.agents.values() if agent.alive}
        newest = world.records.newest
        assert len(live) == 3
        assert {member.session for member in newest.members} == live, world.service.view
        assert all((a.phase, a.epoch) == (AgentPhase.RUNNING, newest.epoch) for a in world.agents.values())
        view = world.service.view
        assert (view.proposing, view.waiting_for, view.blocked) == (False, "", "")
        assert not view.suspicious_of_self
        world.pass_time(20)
        assert world.records.newest is newest, "a run at rest stays at rest"


Story.TestCase.settings = settings(
    max_examples=25, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
test_any_order_of_faults_converges = Story.TestCase
