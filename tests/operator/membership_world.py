"""A small world for tests of membership: one run, its instances of the service, its agents, and time.

Time passes only in `pass_time`, in steps of 50 ms.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tests.operator.membership_agents import ModelAgent
from tests.operator.membership_records import RUN, UID, FakeClock, MemoryRecords, a_revision

from trainingrun.membership.settings import Settings
from trainingrun.membership.state import CreateEpoch, Note, RunState
from trainingrun.ports import Conflict, Refused, Unavailable
from trainingrun.protocol.messages import AgentPhase, DurableCheckpoint, RunView
from trainingrun.protocol.records import Epoch, RankExit


class Service:
    """One instance of membership: a state machine, and somebody who carries out its effects at once."""

    def __init__(self, world: World, name: str = "m", first_seq: int = 1) -> None:
        self.first_seq = first_seq
        self.world = world
        self.name = name
        self.notes: list[str] = []
        self.start()

    def start(self) -> None:
        world = self.world
        self.state = RunState(
            RUN, UID, world.settings, lambda: world.nonce(self.name), world.clock.now(), self.first_seq
        )
        self.alive = True
        self.refresh()

    def refresh(self) -> None:
        records, world = self.world.records, self.world
        self.read_at = world.clock.now()
        if records.unavailable:
            return
        self.state.load(
            records.revisions(UID),
            records.epochs(UID, self.state.epoch),
            world.clock.now(),
            world.clock.wall(),
            records.saved_checkpoint(UID),
        )
        self.carry_out()

    def tick(self) -> None:
        if self.alive and self.world.clock.now() >= self.read_at + self.world.settings.refresh_seconds:
            self.refresh()
        if self.alive and self.state.needs_ticks:
            self.state.tick(self.world.clock.now(), self.world.clock.wall())
            self.carry_out()

    def carry_out(self) -> None:
        while effects := self.state.take_effects():
            for effect in effects:
                if isinstance(effect, Note):
                    self.notes.append(effect.text)
                elif isinstance(effect, CreateEpoch):
                    self._create(effect.record)

    def _create(self, record: Epoch) -> None:
        now, wall = self.world.clock.now(), self.world.clock.wall()
        try:
            self.world.records.create(record)
        except Unavailable as error:
            self.state.creation_failed(str(error), now, wall)
        except Refused as refused:
            self.state.creation_refused(refused.message, now, wall)
        except Conflict:
            existing = next(e for e in self.world.records.epochs(UID) if e.epoch == record.epoch)
            self.state.conflicted(existing, now, wall)
        else:
            self.world.log("create", record, None)
            self.state.created(record, now, wall)

    @property
    def view(self) -> RunView:
        return self.state.view(self.world.clock.now())


class World:
    def __init__(
        self, sizes: Sequence[int] = (1, 2), hold: float = 2.0, useless: Sequence[int] = (), **settings: float
    ) -> None:
        self.settings = replace(Settings(), **settings)  # type: ignore[arg-type]
        self.clock = FakeClock()
        self.records = MemoryRecords([a_revision(sizes, useless, hold)])
        self.durable: list[DurableCheckpoint] = []
        self.committed = False  # something was saved once, whatever is left of it
        self.agents: dict[int, ModelAgent] = {}
        self.transcript: list[tuple[float, str, Any, Any]] = []
        self._nonces: Iterator[int] = itertools.count(1)
        self.second: Service | None = None  # another instance of membership on the same records
        self.service = Service(self)

    # building

    def seat(self, agent: ModelAgent) -> ModelAgent:
        agent.started_at = agent.report_at = self.clock.now()
        self.agents[agent.slot] = agent
        return agent

    def agent(self, slot: int, **options: Any) -> ModelAgent:
        return self.seat(ModelAgent(self, slot, **options))

    def nonce(self, instance: str) -> str:
        return f"{instance}{next(self._nonces)}"

    def with_agents(self, count: int, **options: Any) -> World:
        for slot in range(count):
            self.agent(slot, **options)
        return self

    def running(self, count: int, seconds: float = 6.0, **options: Any) -> World:
        """`count` agents that train in epoch 1, the service's own grace over."""
        self.with_agents(count, **options)
        self.pass_time(seconds)
        assert self.epoch.epoch == 1 and len(self.epoch.members) == count
        return self

    # time

    def pass_time(self, seconds: float) -> World:
        """Everybody lives on; agents and service look every 50 ms."""
        end = self.clock.at + seconds
        while self.clock.at < end - 1e-9:
            self.clock.at = min(end, self.clock.at + 0.05)
            for agent in self.agents.values():
                agent.train()
            for agent in list(self.agents.values()):
                agent.live()
            for service in (self.service, self.second):
                if service is not None:
                    service.tick()
        return self

    def pass_until(self, happened: Callable[[], object], limit: float = 60.0) -> float:
        """Seconds until it happened."""
        began = self.clock.at
        while not happened():
            assert self.clock.at - began < limit, f"not within {limit} s: {self.service.view}"
            self.pass_time(0.05)
        return self.clock.at - began

    def service_stopped(self, seconds: float, agents_go_on: bool = False) -> World:
        """SIGSTOP of membership: its clock jumps."""
        if agents_go_on:
            self.service.alive = False
            self.pass_time(seconds)
            self.service.alive = True
        else:
            self.clock.at += seconds
        return self

    # facts

    @property
    def epoch(self) -> Epoch:
        return self.records.newest

    def all_running(self, record: Epoch) -> bool:
        return all(
            (agent := self.agents.get(member.slot)) is not None
            and agent.alive
            and agent.session == member.session
            and (agent.phase, agent.epoch) == (AgentPhase.RUNNING, record.epoch)
            for member in record.members
        )

    def ranks_lost(self, who: ModelAgent) -> None:
        """Collectives with its ranks fail: the ranks of the others end too."""
        for agent in self.agents.values():
            same = agent is not who and agent.alive and agent.epoch == who.epoch
            if same and agent.phase is AgentPhase.RUNNING:
                agent.phase = AgentPhase.FAILED
                agent.exits = (RankExit(agent.slot, 0, 1, "connection reset by peer"),)
                agent.report_at = self.clock.now()
        who.report_at = self.clock.now()

    def save(self, epoch: int, step: int) -> None:
        checkpoint = DurableCheckpoint(f"step-{step:08d}.e{epoch:04d}", epoch, step)
        self.committed = True
        if checkpoint not in self.durable:
            self.durable = [*self.durable, checkpoint][-3:]

    def log(self, kind: str, request: Any, reply: Any) -> None:
        self.transcript.append((self.clock.at, kind, request, reply))
