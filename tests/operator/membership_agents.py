"""Model agents for tests of membership: they stop when told, start from records, step, and keep memory snapshots.

They talk to a state machine directly and do nothing by themselves: `World.pass_time` lets them live.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tests.operator.membership_records import RUN

from trainingrun.membership.errors import Refused, UnknownSession
from trainingrun.protocol.exit_codes import ExitCode
from trainingrun.protocol.messages import (
    AgentPhase,
    Directive,
    DirectiveKind,
    HeldSnapshot,
    JoinRequest,
    Poll,
    Progress,
    Report,
)
from trainingrun.protocol.records import Epoch, EpochSummary, RankExit, RestoreSource

if TYPE_CHECKING:
    from tests.operator.membership_world import Service, World

STEP_SECONDS = 0.25


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
    leaving: bool = False
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

    def leaves(self) -> None:
        """SIGTERM: the ranks are killed, the agent says so and ends; its connections close a little later."""
        self.phase, self.leaving = AgentPhase.IDLE, True
        self.talk()
        self.alive = False
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

    def fetch_fails(self, why: str = "slot 0: connection refused") -> None:
        """It cannot get the restore point from its peers, so its ranks are not started; those of others wait."""
        self.phase = AgentPhase.FAILED
        message = f"pieces [(0, 0, 0)] of step {self.step} cannot be fetched: {why}"
        self.exits = (RankExit(self.slot, 0, ExitCode.NOT_FETCHED, message),)
        self.report_at = self.world.clock.now()

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
            location_fresh=not (durable or self.world.committed),
            damaged=self.damaged,
            exits=self.exits,
            progress=self.progress,
            leaving=self.leaving,
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
