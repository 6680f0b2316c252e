"""What each member is told: a pure function of where the run stands. Called by the state machine after every
event.

`None` means: leave it at what it was told last. A member is never told to start anything but the current
record.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainingrun.membership.begin import Stage
from trainingrun.membership.proposal import Proposal
from trainingrun.membership.roster import Seat
from trainingrun.membership.scene import Scene
from trainingrun.protocol.messages import AgentPhase, Directive, DirectiveKind
from trainingrun.protocol.records import Epoch


@dataclass(frozen=True)
class Order:
    """A directive before it gets its number."""

    kind: DirectiveKind
    nonce: str = ""
    epoch: int = 0
    record: Epoch | None = None
    reason: str = ""

    def differs_from(self, directive: Directive) -> bool:
        """The reason alone is not news."""
        record = self.record.nonce if self.record else None
        given = directive.record.nonce if directive.record else None
        return (self.kind, self.nonce, self.epoch, record) != (
            directive.kind,
            directive.nonce,
            directive.epoch,
            given,
        )

    def numbered(self, seq: int) -> Directive:
        return Directive(seq, self.kind, self.nonce, self.epoch, self.record, self.reason)


def order_for(seat: Seat, scene: Scene, proposal: Proposal | None) -> Order | None:
    if scene.complete:
        return None if seat.phase is AgentPhase.DONE and _first(seat, scene) else _complete(scene)
    if proposal is not None:
        return _during(seat, scene, proposal)
    if seat.left_out or scene.evidence.broken or scene.evidence.committed:
        return None
    current = scene.current
    if current is not None and scene.in_epoch(seat):
        return Order(DirectiveKind.START, epoch=current.epoch, record=current, reason=current.trigger.value)
    if current is not None and seat.phase in (AgentPhase.RUNNING, AgentPhase.PAUSED):
        # Ranks of an epoch that was overtaken, or of this one without a seat in it.
        reason = f"epoch {current.epoch} goes on without this member; stop the ranks"
        return Order(DirectiveKind.PREPARE, current.nonce, current.epoch, reason=reason)
    return Order(
        DirectiveKind.WAIT, reason="not needed by the current epoch" if current else "the run has not started"
    )


def gone() -> Order:
    return Order(DirectiveKind.LEAVE, reason="RunGone")


def _complete(scene: Scene) -> Order:
    """Names the epoch, so that who has no part in it (a spare, one that is just back) can say what ended too."""
    epoch = scene.current.epoch if scene.current is not None else 0
    return Order(DirectiveKind.LEAVE, epoch=epoch, reason="Complete")


def _first(seat: Seat, scene: Scene) -> bool:
    return scene.current is not None and scene.current.members[0].session == seat.session


def _during(seat: Seat, scene: Scene, proposal: Proposal) -> Order | None:
    if seat.left_out:
        return None
    number = scene.lineage.epoch + 1
    if proposal.stage is Stage.PAUSING:
        if scene.in_epoch(seat):
            return Order(DirectiveKind.PAUSE, epoch=scene.lineage.epoch, reason=proposal.reason)
        return None
    # Members of the current epoch stop their ranks even when not chosen; only the chosen are waited for.
    if seat.session in proposal.asked_at or scene.in_epoch(seat):
        return Order(DirectiveKind.PREPARE, proposal.nonce, number, reason=proposal.reason)
    return None
