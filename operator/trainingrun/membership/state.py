"""The state machine of one run: events go in, directives and effects come out.

It decides when an epoch ends and which one follows. It has no clock and does no I/O: `now` is monotonic
seconds, `wall` seconds since 1970, and a record is created by whoever carries out `CreateEpoch` and calls
back. It never judges why something died; that is the controller's. Called by `hosts`, and by tests with a
clock of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from trainingrun.membership import directives
from trainingrun.membership.begin import Stage
from trainingrun.membership.errors import BadMessage, ProtocolMismatch, RunGone
from trainingrun.membership.evidence import Evidence
from trainingrun.membership.lineage import Lineage
from trainingrun.membership.proposal import CreateEpoch, Effect, Note, Proposer
from trainingrun.membership.roster import Roster, Seat
from trainingrun.membership.scene import Scene
from trainingrun.membership.settings import Settings
from trainingrun.membership.view import view_of
from trainingrun.protocol import PROTOCOL_MAX, PROTOCOL_MIN
from trainingrun.protocol.messages import (
    AgentPhase,
    Directive,
    DurableCheckpoint,
    JoinReply,
    JoinRequest,
    Poll,
    Progress,
    Report,
    RunView,
)
from trainingrun.protocol.records import Epoch, Revision

__all__ = ["CreateEpoch", "Effect", "Note", "RunState"]

MOST_SEATS = 1 << 20
STEP_AT_ONCE_MEMBERS = 64


class RunState:
    """`started_at`: when (monotonic) this service started; it declares nobody lost for a while after that.

    `first_seq`: where the numbers of directives begin, and the distance kept from those of another instance; best
    random, so that an agent which goes from one to the other never takes news for something that it has seen.
    """

    def __init__(
        self,
        run: str,
        run_uid: str,
        settings: Settings,
        new_nonce: Callable[[], str],
        started_at: float,
        first_seq: int = 1,
    ) -> None:
        self._first_seq = first_seq
        self._settings = settings
        self._trust_from = started_at + settings.grace_seconds
        self._looked_at: float | None = None  # last look at the time while there are members
        self._gone = False
        self._effects: list[Effect] = []
        self._proposer = Proposer(settings, new_nonce)
        self._scene = Scene(run, run_uid, Lineage(), Roster(settings), Evidence(None))
        self.version = 0  # grows whenever a poll may have to be answered

    # records

    def load(
        self,
        revisions: Sequence[Revision],
        epochs: Iterable[Epoch],
        now: float,
        wall: float,
        saved: DurableCheckpoint | None = None,
    ) -> None:
        """What the records say now. The newest epoch is current, whoever made it.

        `saved` is the checkpoint that the run's status names: no record knows yet what the newest epoch saved.
        """
        if revisions:
            self._scene.revision = revisions[-1]
        if saved is not None:
            self._scene.remember_durable([saved])
        self._adopt(epochs)
        self._step(now, wall)

    def created(self, record: Epoch, now: float, wall: float) -> None:
        """The record of a CreateEpoch exists now."""
        self._adopt([record])
        self._step(now, wall)

    def conflicted(self, existing: Epoch, now: float, wall: float) -> None:
        """The number was taken. With our nonce, an earlier reply was lost; else somebody else has won."""
        proposal = self._proposer.proposal
        if proposal is not None and proposal.nonce != existing.nonce:
            self._note(f"epoch {existing.epoch} was made by another instance; adopting it")
        self._adopt([existing])
        self._step(now, wall)

    def creation_failed(self, reason: str, now: float, wall: float) -> None:
        """The outcome of a CreateEpoch is not known; it is tried again."""
        self._note(f"record not created yet: {reason}")
        self._proposer.creation_failed(now)
        self._step(now, wall)

    def creation_refused(self, reason: str, now: float, wall: float) -> None:
        """The record of a CreateEpoch may not be made: quota, policy. It is tried again, ever more slowly."""
        self._note(f"record refused: {reason}")
        self._proposer.creation_refused(reason, now)
        self._step(now, wall)

    def run_gone(self) -> None:
        """The run was deleted: everyone leaves."""
        self._gone = True
        self._direct()

    # agents

    def join(self, request: JoinRequest, now: float, wall: float) -> JoinReply:
        """Raises ProtocolMismatch, StaleIncarnation, RunGone."""
        self._refuse_when_gone()
        lowest, highest = request.protocol
        if highest < PROTOCOL_MIN or lowest > PROTOCOL_MAX:
            raise ProtocolMismatch(
                f"agent speaks protocol {lowest}-{highest}, this service {PROTOCOL_MIN}-{PROTOCOL_MAX}: "
                f"use an image of the operator's version"
            )
        _check_join(request)
        self._watch_self(now)
        seat = self._scene.roster.join(request, now)
        self._note(
            f"slot {request.slot} incarnation {request.incarnation} on {request.node} joined"
            + (f", running epoch {request.running_epoch}" if request.running_epoch else "")
        )
        self._mark_ready(seat, wall)
        self._step_soon(now, wall)
        settings = self._settings
        return JoinReply(
            protocol=min(highest, PROTOCOL_MAX),
            report_seconds=settings.report_seconds,
            poll_seconds=settings.poll_seconds,
            silence_seconds=settings.silence_seconds,
        )

    def report(self, report: Report, now: float, wall: float) -> Directive:
        """Raises UnknownSession, StaleIncarnation, RunGone."""
        self._refuse_when_gone()
        self._watch_self(now)
        seat = self._scene.roster.get(report.session)
        before, seat.report = seat.report, report
        self._scene.roster.heard(seat, now)
        self._scene.remember_durable(report.durable)
        if seat.left_out and report.prepared == seat.left_out:
            seat.left_out = ""
        if report.leaving:
            self._scene.roster.leave(seat, now, wall)
            self._note(f"slot {seat.slot} on {seat.join.node} leaves")
        self._mark_ready(seat, wall)
        news = self._read_progress(report.progress, now)
        if news or before is None or _decisive(before) != _decisive(report):
            self._step_soon(now, wall)
        return seat.directive

    def poll(self, poll: Poll, now: float) -> Directive:
        """The newest directive; a `seq` that is not above `poll.seen` is no news. Raises as `report`."""
        self._refuse_when_gone()
        self._watch_self(now)
        seat = self._scene.roster.get(poll.session)
        self._scene.roster.heard(seat, now)
        if poll.seen > seat.directive.seq:
            # It counts what another instance said. Whatever we say is newer than that.
            seat.directive = replace(seat.directive, seq=poll.seen + self._first_seq)
        return seat.directive

    def directive(self, session: str) -> Directive:
        """Raises as `report`, but for a deleted run, whose members are told to leave."""
        return self._scene.roster.get(session).directive

    def seat_of(self, session: str) -> tuple[int, int] | None:
        """(slot, incarnation) that joined with this session; None when no live member has it."""
        seat = self._scene.roster.seat_with(session)
        return (seat.slot, seat.join.incarnation) if seat is not None else None

    def connection_closed(self, session: str, now: float) -> None:
        self._watch_self(now)
        self._scene.roster.connection_closed(session, now)

    def tick(self, now: float, wall: float) -> None:
        if not self._gone:
            self._watch_self(now)
            self._step(now, wall)

    # out

    def take_effects(self) -> tuple[Effect, ...]:
        effects, self._effects = tuple(self._effects), []
        return effects

    @property
    def epoch(self) -> int:
        return self._scene.lineage.epoch

    @property
    def gone(self) -> bool:
        return self._gone

    @property
    def needs_ticks(self) -> bool:
        return not self._gone and len(self._scene.roster) > 0

    def view(self, now: float) -> RunView:
        return view_of(self._scene, self._proposer, now)

    # inside

    def _refuse_when_gone(self) -> None:
        if self._gone:
            raise RunGone("this run is gone")

    def _watch_self(self, now: float) -> None:
        """Notice that this process itself was stopped or starved: then every silence was its own."""
        late = self._looked_at is not None and now - self._looked_at > self._settings.stall_seconds
        if late and self._looked_at is not None:
            self._note(f"was away for {now - self._looked_at:.1f} s itself; declares nobody lost for a while")
            self._trust_from = now + self._settings.grace_seconds
            self._scene.roster.renew(now)
            self._scene.evidence.renew(now)
            self._proposer.renew(now)
        self._looked_at = now if len(self._scene.roster) else None

    def _step_soon(self, now: float, wall: float) -> None:
        """At once, or with the next tick where a look at every member takes longer than that is worth."""
        if len(self._scene.roster) <= STEP_AT_ONCE_MEMBERS:
            self._step(now, wall)

    def _step(self, now: float, wall: float) -> None:
        scene = self._scene
        if self._gone:
            return
        self._finish_when_done()
        trust = now >= self._trust_from
        if trust:
            for seat, departure in scene.roster.expire(now, wall):
                how = "left" if scene.complete else "is lost"
                self._note(f"slot {seat.slot} on {seat.join.node} {how} ({departure.reason})")
        scene.suspicious = not trust or scene.roster.mass_silence
        if not scene.complete:
            proposal = self._proposer.proposal
            scene.evidence.observe(
                scene.roster,
                now,
                wall,
                grace_seconds=self._settings.grace_seconds,
                trust=trust,
                stopping=proposal is not None and proposal.stage is Stage.PREPARING,
            )
            self._effects += self._proposer.advance(scene, now, wall)
        self._looked_at = now if len(scene.roster) else None
        self._direct()

    def _finish_when_done(self) -> None:
        """The run is complete when the member that holds rank 0 says so; its going away is no loss."""
        scene, current = self._scene, self._scene.current
        if scene.complete or current is None:
            return
        first = scene.roster.seat_of(current.members[0])
        if first is not None and first.phase is AgentPhase.DONE and first.epoch == current.epoch:
            scene.complete = True
            self._proposer.reset()
            self._note(f"the run is complete (epoch {current.epoch}); the members leave")

    def _adopt(self, epochs: Iterable[Epoch]) -> None:
        scene = self._scene
        for record in sorted(epochs, key=lambda record: record.epoch):
            if not scene.lineage.add(record):
                continue
            scene.roster.know(record.members)
            scene.roster.forget_departed(member.session for member in record.members)
            scene.evidence = Evidence(record, scene.lineage.damaged)
            scene.first_step_at = None
            self._proposer.reset()
            self._note(
                f"epoch {record.epoch}: {record.rung.nodes} nodes, slots {[m.slot for m in record.members]}, "
                f"from {record.restore.source.value} step {record.restore.step} ({record.trigger.value})"
            )

    def _mark_ready(self, seat: Seat, wall: float) -> None:
        if seat.ready and not seat.ready_wall:
            seat.ready_wall = wall

    def _read_progress(self, progress: Progress | None, now: float) -> bool:
        """True when the current epoch has just been seen to step for the first time."""
        scene = self._scene
        if progress is None:
            return False
        known = scene.progress
        if known is None or (progress.summary.epoch, progress.step) >= (known.summary.epoch, known.step):
            scene.progress = progress
        stepped = scene.current_progress is not None and scene.current_progress.summary.first_step_at > 0
        if stepped and scene.first_step_at is None:
            scene.first_step_at = now
            return True
        return False

    def _direct(self) -> None:
        for seat in self._scene.roster.seats:
            if self._gone:
                order: directives.Order | None = directives.gone()
            else:
                order = directives.order_for(seat, self._scene, self._proposer.proposal)
            if order is not None and order.differs_from(seat.directive):
                seat.directive = order.numbered(max(seat.directive.seq + 1, self._first_seq))
                self.version += 1

    def _note(self, text: str) -> None:
        self._effects.append(Note(text))


def _decisive(report: Report) -> tuple[object, ...]:
    """What of a report can change a decision at once; the rest is looked at by the next tick."""
    return (report.phase, report.epoch, report.prepared, report.damaged, len(report.exits), report.leaving)


def _check_join(request: JoinRequest) -> None:
    """Raises BadMessage for what no agent can be."""
    wrong = [
        name
        for name, good in (
            ("slot", 0 <= request.slot < MOST_SEATS),
            ("incarnation", 0 <= request.incarnation < MOST_SEATS),
            ("session", bool(request.session)),
            ("processes", 0 < request.processes < MOST_SEATS),
            ("storePort", 0 < request.store_port < 1 << 16),
            ("peerPort", 0 < request.peer_port < 1 << 16),
        )
        if not good
    ]
    if wrong:
        raise BadMessage(f"$.{wrong[0]}: no agent has such a value")
