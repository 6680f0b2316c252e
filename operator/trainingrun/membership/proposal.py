"""Drives one change: pause or stop the ranks, collect acknowledgements, choose the restore point, make the
record.

An unacknowledged proposal leaves nothing. Who is chosen is worked out anew at every look, so that a member
lost meanwhile is dropped at once and one that got ready is taken along; but once a record was sent for
creation it stays as it is until the outcome is known, because it may exist already. Pure; called by the state
machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trainingrun.membership.begin import Begin, Stage, begin, describe, too_few
from trainingrun.membership.record import build_record
from trainingrun.membership.restore import Blocked
from trainingrun.membership.roster import Seat
from trainingrun.membership.scene import Scene
from trainingrun.membership.selection import choose_members, useful_rungs
from trainingrun.membership.settings import Settings
from trainingrun.protocol.records import Epoch


@dataclass(frozen=True)
class CreateEpoch:
    """Create this record, then tell the state machine what came of it."""

    record: Epoch


@dataclass(frozen=True)
class Note:
    """A decision and its reason, for the log."""

    text: str


Effect = CreateEpoch | Note


@dataclass
class Proposal:
    nonce: str
    stage: Stage
    reason: str
    since: float  # monotonic: of this stage
    asked_at: dict[str, float] = field(default_factory=dict)  # session -> monotonic
    record: Epoch | None = None  # sent for creation
    retry_at: float | None = None  # creation failed, outcome unknown; or refused
    refusals: int = 0  # in a row


class Proposer:
    def __init__(self, settings: Settings, new_nonce: Callable[[], str]) -> None:
        self._settings = settings
        self._new_nonce = new_nonce
        self._enough_since: float | None = None
        self.proposal: Proposal | None = None
        self.waiting_for = ""
        self.blocked = ""

    def reset(self) -> None:
        """A new epoch is current."""
        self.proposal, self._enough_since, self.waiting_for, self.blocked = None, None, "", ""

    def renew(self, now: float) -> None:
        """The service itself was away: deadlines start again."""
        if self.proposal is not None:
            self.proposal.since = now
            self.proposal.asked_at = dict.fromkeys(self.proposal.asked_at, now)
        if self._enough_since is not None:
            self._enough_since = now

    def creation_failed(self, now: float) -> None:
        if self.proposal is not None and self.proposal.record is not None:
            self.proposal.retry_at = now + self._settings.create_retry_seconds

    def creation_refused(self, reason: str, now: float) -> None:
        proposal = self.proposal
        if proposal is None or proposal.record is None:
            return
        settings = self._settings
        delay = min(
            settings.create_retry_seconds * 2.0 ** min(proposal.refusals, 30), settings.refused_cap_seconds
        )
        proposal.refusals += 1
        proposal.retry_at = now + delay
        self.waiting_for = f"the record of epoch {proposal.record.epoch} is refused: {reason}"

    def advance(self, scene: Scene, now: float, wall: float) -> list[Effect]:
        """Go as far as can be gone now."""
        proposal = self.proposal
        if proposal is not None and proposal.record is not None:
            return self._create_again(proposal, proposal.record, now)
        self._count_ready(scene, now)
        effects: list[Effect] = []
        if proposal is None:
            proposal = self._begin(scene, now, effects)
        if proposal is not None and proposal.stage is Stage.PAUSING:
            self._pause(proposal, scene, now, effects)
        if proposal is not None and proposal.stage is Stage.PREPARING:
            self._prepare(proposal, scene, now, wall, effects)
        return effects

    def _count_ready(self, scene: Scene, now: float) -> None:
        if scene.rung is None:
            self._enough_since = None
        elif self._enough_since is None:
            self._enough_since = now

    def _create_again(self, proposal: Proposal, record: Epoch, now: float) -> list[Effect]:
        if proposal.retry_at is None or now < proposal.retry_at:
            return []
        proposal.retry_at = None
        return [CreateEpoch(record)]

    def _begin(self, scene: Scene, now: float, effects: list[Effect]) -> Proposal | None:
        if self.blocked:
            still = scene.restore(scene.ready)
            if isinstance(still, Blocked):
                self._say_blocked(still, effects)
                return None
            self.blocked = ""
            effects.append(Note("a usable checkpoint is there again"))
        decision = begin(scene, now, self._enough_since, self._settings)
        if not isinstance(decision, Begin):
            self.waiting_for = decision.reason
            return None
        self.proposal = Proposal(self._new_nonce(), decision.stage, decision.reason, now)
        scene.evidence.commit(self.proposal.nonce)
        self.waiting_for = f"{decision.stage.value} epoch {scene.lineage.epoch + 1}: {decision.reason}"
        effects.append(
            Note(f"proposes epoch {scene.lineage.epoch + 1} ({decision.stage.value}): {decision.reason}")
        )
        return self.proposal

    def _pause(self, proposal: Proposal, scene: Scene, now: float, effects: list[Effect]) -> None:
        if scene.evidence.broken:
            why = describe(scene)
        elif scene.pausing_is_over():
            why = "all members paused"
        elif now - proposal.since >= self._settings.pause_deadline_seconds and not scene.suspicious:
            why = f"not paused within {self._settings.pause_deadline_seconds:.0f} s; ranks are stopped"
        else:
            return
        proposal.stage, proposal.since, proposal.reason = Stage.PREPARING, now, why
        self.waiting_for = f"{proposal.stage.value} epoch {scene.lineage.epoch + 1}: {why}"
        effects.append(Note(f"epoch {scene.lineage.epoch + 1}: {why}"))

    def _prepare(
        self, proposal: Proposal, scene: Scene, now: float, wall: float, effects: list[Effect]
    ) -> None:
        revision, rung = scene.revision, scene.rung
        if revision is None or not useful_rungs(revision.rungs):
            return
        if rung is None:
            self.proposal = None
            self.waiting_for = too_few(scene, revision)
            effects.append(Note(f"drops the proposal of epoch {scene.lineage.epoch + 1}: {self.waiting_for}"))
            return
        members = choose_members(scene.ready, scene.current, rung)
        late = [seat for seat in members if self._is_late(proposal, seat, now, scene)]
        if late:
            self._leave_out(late, proposal, scene, now, wall, effects)
            return
        for seat in members:
            proposal.asked_at.setdefault(seat.session, now)
        if not all(seat.prepared == proposal.nonce for seat in members) or self._settling(scene, now):
            return
        restore = scene.restore(members)
        if awaited := scene.worth_waiting_for(members, restore, now):
            self._say_awaited(awaited, effects)
            return
        if isinstance(restore, Blocked):
            self.proposal = None
            self._say_blocked(restore, effects)
            return
        proposal.record = build_record(scene, revision, rung, members, restore, proposal.nonce, wall)
        effects.append(CreateEpoch(proposal.record))

    def _is_late(self, proposal: Proposal, seat: Seat, now: float, scene: Scene) -> bool:
        asked = proposal.asked_at.get(seat.session, now)
        silent = seat.prepared != proposal.nonce
        return silent and not scene.suspicious and now - asked >= self._settings.ack_deadline_seconds

    def _leave_out(
        self,
        late: list[Seat],
        proposal: Proposal,
        scene: Scene,
        now: float,
        wall: float,
        effects: list[Effect],
    ) -> None:
        for seat in late:
            seat.left_out = proposal.nonce
            scene.evidence.unresponsive(seat, now, wall)
        slots = ", ".join(str(seat.slot) for seat in late)
        effects.append(
            Note(f"slots {slots} did not acknowledge in time (Unresponsive); proposes without them")
        )
        self.proposal = Proposal(self._new_nonce(), Stage.PREPARING, proposal.reason, now)
        scene.evidence.commit(self.proposal.nonce)

    def _settling(self, scene: Scene, now: float) -> bool:
        last = scene.evidence.last_loss_at
        return last is not None and now < last + self._settings.settle_seconds

    def _say_awaited(self, slots: Sequence[int], effects: list[Effect]) -> None:
        text = f"the newest state is in the memory of slot {', '.join(map(str, slots))} only, which may come back"
        if self.waiting_for != text:
            self.waiting_for = text
            effects.append(Note(text))

    def _say_blocked(self, blocked: Blocked, effects: list[Effect]) -> None:
        if self.blocked != blocked.reason:
            self.blocked = self.waiting_for = blocked.reason
            effects.append(Note(f"blocked: {blocked.reason}"))
