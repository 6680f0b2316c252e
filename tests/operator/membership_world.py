"""A small world for tests of membership: a clock that is moved by hand, records in memory, model agents.

`World` holds one run. Agents behave as real ones do (stop when told, start from records, count steps, keep
memory snapshots), and talk to the state machine directly. Time passes only in `pass_time`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trainingrun.membership.errors import Refused, UnknownSession
from trainingrun.membership.settings import Settings
from trainingrun.membership.state import CreateEpoch, Note, RunState
from trainingrun.ports import Conflict, Unavailable
from trainingrun.protocol.messages import (
    AgentPhase,
    Directive,
    DirectiveKind,
    DurableCheckpoint,
    HeldSnapshot,
    JoinRequest,
    Poll,
    Progress,
    Report,
    RunView,
)
from trainingrun.protocol.records import Epoch, EpochSummary, RankExit, RestoreSource, Revision, Rung

RUN, UID, WALL = "story", "uid-1", 1_800_000_000.0
STEP_SECONDS = 0.25


def a_rung(nodes: int, useful: bool = True) -> Rung:
    """Two processes a node; the state is sharded inside a node and copied on every node."""
    return Rung(nodes, 2, 1, nodes, 2, 1, 2, 1, 0, nodes, useful, "" if useful else "no whole replica more")


def a_revision(sizes: Sequence[int] = (1, 2), useless: Sequence[int] = (), hold: float = 2.0) -> Revision:
    rungs = tuple(a_rung(size, size not in useless) for size in sizes)
    return Revision(f"{RUN}-r1", RUN, UID, 1, {"scale": {"growHoldSeconds": hold}}, rungs, {}, "test")


class FakeClock:
    def __init__(self) -> None:
        self.at = 100.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return WALL + self.at


@dataclass
class MemoryRecords:
    """A `Records` in memory, with faults on demand."""

    revision_list: list[Revision] = field(default_factory=lambda: [a_revision()])
    made: dict[str, Epoch] = field(default_factory=dict)
    exists: bool = True
    unavailable: bool = False
    lose_replies: int = 0  # so many records are created without the caller learning of it
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run_exists(self, run_uid: str) -> str | None:
        self._check()
        return RUN if self.exists and run_uid == UID else None

    def revisions(self, run_uid: str) -> Sequence[Revision]:
        self._check()
        return list(self.revision_list)

    def epochs(self, run_uid: str, after: int = 0) -> Sequence[Epoch]:
        self._check()
        return sorted((e for e in self.made.values() if e.epoch > after), key=lambda e: e.epoch)

    def create(self, record: Revision | Epoch) -> None:
        self._check()
        assert isinstance(record, Epoch)
        with self.lock:
            if record.name in self.made:
                raise Conflict(record.name)
            self.made[record.name] = record
        if self.lose_replies:
            self.lose_replies -= 1
            raise Unavailable("the reply was lost")

    @property
    def newest(self) -> Epoch:
        return self.epochs(UID)[-1]

    def _check(self) -> None:
        if self.unavailable:
            raise Unavailable("records are away")


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
        except Conflict:
            existing = next(e for e in self.world.records.epochs(UID) if e.epoch == record.epoch)
            self.state.conflicted(existing, now, wall)
        else:
            self.world.log("create", record, None)
            self.state.created(record, now, wall)

    @property
    def view(self) -> RunView:
        return self.state.view(self.world.clock.now())


@dataclass
class ModelAgent:
    """An agent with its ranks. `obeys`: acts on directives; `talks`: sends reports."""

    world: World
    slot: int
    incarnation: int = 0
    life: int = 0  # counts agent processes of this pod
    warm_seconds: float = 0.0  # Preparing for so long after the start
    obeys: bool = True
    talks: bool = True
    alive: bool = True
    steps: bool = True  # its ranks make progress
    saves_every: int = 0  # durable checkpoints; 0: none
    phase: AgentPhase = AgentPhase.PREPARING
    epoch: int = 0
    step: int = 0
    prepared: str = ""
    exits: tuple[RankExit, ...] = ()
    damaged: tuple[str, ...] = ()
    held: tuple[HeldSnapshot, ...] = ()
    progress: Progress | None = None
    record: Epoch | None = None
    via: Service | None = None  # the instance of membership that it reaches; None: the world's
    directive: Directive = field(default_factory=lambda: Directive(0))
    refusal: Refused | None = None
    joined: bool = False
    started_at: float = 0.0
    report_at: float = 0.0
    step_at: float = 0.0

    @property
    def session(self) -> str:
        return f"s{self.slot}-{self.incarnation}-{self.life}"

    @property
    def service(self) -> Service:
        return self.via or self.world.service

    @property
    def first(self) -> bool:
        return self.record is not None and self.record.members[0].session == self.session

    # what happens to it

    def kill(self) -> None:
        """SIGKILL: ranks die with it, its connections close, ranks of others fail."""
        self.alive = False
        self.service.state.connection_closed(self.session, self.world.clock.now())
        self.world.ranks_lost(self)

    def restart(self) -> ModelAgent:
        """The container starts again in place; memory snapshots outlive it."""
        if self.alive:
            self.kill()
        return self.world.seat(replace(_fresh(self), life=self.life + 1, held=self.held))

    def replaced(self) -> ModelAgent:
        """A new pod has the seat."""
        if self.alive:
            self.kill()
        return self.world.seat(replace(_fresh(self), incarnation=self.incarnation + 1, life=0))

    def rank_dies(self, exit_code: int = 1, message: str = "boom", damaged: str = "") -> None:
        self.phase = AgentPhase.FAILED
        self.exits = (RankExit(self.slot, 0, exit_code, message),)
        self.damaged = (*self.damaged, damaged) if damaged else self.damaged
        self.world.ranks_lost(self)

    # what it does by itself

    def join(self) -> None:
        request = JoinRequest(
            protocol=(1, 1),
            slot=self.slot,
            incarnation=self.incarnation,
            pod=f"{RUN}-{self.slot}-{self.incarnation}",
            session=self.session,
            node=f"node-{self.slot}",
            address=f"10.0.0.{self.slot}",
            store_port=4000 + self.slot,
            peer_port=5000 + self.slot,
            processes=2,
            device="cpu",
            running_epoch=self.epoch if self.phase is AgentPhase.RUNNING else 0,
        )
        state = self.service.state
        self._ask(
            "join", request, lambda: state.join(request, self.world.clock.now(), self.world.clock.wall())
        )
        self.joined, self.directive = True, Directive(0)

    def live(self) -> None:
        """One moment of its life."""
        now, world = self.world.clock.now(), self.world
        if not self.alive or self.refusal or not self.service.alive:
            return
        if self.phase is AgentPhase.PREPARING and now >= self.started_at + self.warm_seconds - 1e-9:
            self.phase = AgentPhase.IDLE
        if self.talks and now >= self.report_at - 1e-9:
            self.report_at = now + world.settings.report_seconds
            self.talk()

    def train(self) -> None:
        """A step, if it is time for one and every rank of the epoch runs."""
        now = self.world.clock.now()
        if self.phase is not AgentPhase.RUNNING or not self.steps or now < self.step_at + STEP_SECONDS:
            return
        if self.record is None or not self.world.all_running(self.record):
            return
        self.step, self.step_at = self.step + 1, now
        self.held = (self._snapshot(self.step), *self.held)[:2]
        if self.saves_every and self.step % self.saves_every == 0:
            self.world.save(self.epoch, self.step)
        if self.first:
            self.progress = self._progress()

    def talk(self) -> None:
        state, clock = self.service.state, self.world.clock
        try:
            if not self.joined:
                self.join()
            report = self.report()
            self._take(self._ask("report", report, lambda: state.report(report, clock.now(), clock.wall())))
            poll = Poll(self.session, self.slot, self.directive.seq)
            self._take(self._ask("poll", poll, lambda: state.poll(poll, clock.now())))
        except UnknownSession:
            self.joined = False
        except Refused as refusal:
            self.refusal = refusal

    def report(self) -> Report:
        durable = tuple(self.world.durable)
        return Report(
            session=self.session,
            slot=self.slot,
            phase=self.phase,
            epoch=self.epoch,
            prepared=self.prepared,
            snapshots=self.held,
            durable=durable,
            damaged=self.damaged,
            exits=self.exits,
            progress=self.progress,
        )

    def _ask(self, kind: str, request: Any, call: Callable[[], Any]) -> Any:
        try:
            reply = call()
        except Refused as refused:
            self.world.log(kind, request, {"error": refused.code})
            raise
        self.world.log(kind, request, reply)
        self.service.carry_out()
        return reply

    def _take(self, directive: Directive) -> None:
        if directive.seq <= self.directive.seq or not self.obeys:
            return
        self.directive = directive
        self.report_at = self.world.clock.now()  # news is told at once
        match directive.kind:
            case DirectiveKind.PREPARE:
                self.prepared = directive.nonce
                if self.phase is AgentPhase.RUNNING:
                    self.phase = AgentPhase.IDLE
            case DirectiveKind.PAUSE if self.phase is AgentPhase.RUNNING and directive.epoch == self.epoch:
                self.phase = AgentPhase.PAUSED
            case DirectiveKind.START if directive.record and directive.record.epoch > self.epoch:
                self._start(directive.record)
            case DirectiveKind.LEAVE:
                self.alive = False
                self.phase = AgentPhase.DONE
            case _:
                pass

    def _start(self, record: Epoch) -> None:
        self.record, self.epoch, self.step = record, record.epoch, record.restore.step
        self.phase, self.prepared, self.exits, self.progress = AgentPhase.RUNNING, "", (), None
        self.step_at = self.world.clock.now()
        if record.restore.source is RestoreSource.MEMORY:
            restored = (record.restore.epoch, record.restore.step)
            self.held = tuple(held for held in self.held if (held.epoch, held.step) == restored)

    def _snapshot(self, step: int) -> HeldSnapshot:
        assert self.record is not None
        _, shard, _ = layout = self.record.rung.layout
        return HeldSnapshot(self.epoch, step, layout, tuple((0, i, 0) for i in range(shard)))

    def _progress(self) -> Progress:
        assert self.record is not None
        wall, restored = self.world.clock.wall(), self.record.restore.step
        first_at = self.progress.summary.first_step_at if self.progress else wall
        newest = max(self.world.durable, key=lambda c: (c.epoch, c.step), default=None)
        summary = EpochSummary(
            epoch=self.epoch,
            first_step_at=first_at,
            first_step=restored + 1,
            last_step=self.step,
            last_step_at=wall,
            durable=newest.name if newest else "",
            durable_step=newest.step if newest else 0,
        )
        return Progress(self.step, 1.0, self.step * 64, 256.0, 1e-3, 1000, summary)


def _fresh(agent: ModelAgent) -> ModelAgent:
    return ModelAgent(
        agent.world,
        agent.slot,
        agent.incarnation,
        warm_seconds=agent.warm_seconds,
        saves_every=agent.saves_every,
    )


class World:
    def __init__(
        self, sizes: Sequence[int] = (1, 2), hold: float = 2.0, useless: Sequence[int] = (), **settings: float
    ) -> None:
        self.settings = replace(Settings(), **settings)  # type: ignore[arg-type]
        self.clock = FakeClock()
        self.records = MemoryRecords([a_revision(sizes, useless, hold)])
        self.durable: list[DurableCheckpoint] = []
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
        if checkpoint not in self.durable:
            self.durable = [*self.durable, checkpoint][-3:]

    def log(self, kind: str, request: Any, reply: Any) -> None:
        self.transcript.append((self.clock.at, kind, request, reply))
