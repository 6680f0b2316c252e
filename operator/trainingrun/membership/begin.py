"""Whether a new epoch is wanted now, how it begins, or why it waits: pure, called by the proposer when it is
idle.

Losses settle first, so that a burst is one change. A process death does not wait, except for who has not come
back yet after a restart of this service, and except when epochs fail again and again without progress. Growth
is voluntary: it waits until the running epoch has stepped and its hold is over, and never begins while the
service doubts itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from trainingrun.membership.lineage import backoff_seconds
from trainingrun.membership.roster import Seat
from trainingrun.membership.scene import Scene
from trainingrun.membership.selection import useful_rungs
from trainingrun.membership.settings import Settings
from trainingrun.protocol.messages import AgentPhase
from trainingrun.protocol.records import Revision, Trigger


class Stage(StrEnum):
    PAUSING = "Pausing"  # ranks run until a step that they agree on
    PREPARING = "Preparing"  # ranks are stopped; members acknowledge


@dataclass(frozen=True)
class Begin:
    stage: Stage
    reason: str


@dataclass(frozen=True)
class Wait:
    reason: str  # "" when nothing is wanted


def begin(scene: Scene, now: float, enough_since: float | None, settings: Settings) -> Begin | Wait:
    """`enough_since`: since when (monotonic) the ready members fill the smallest useful rung, or None."""
    if scene.revision is None or not useful_rungs(scene.revision.rungs):
        return Wait("no revision with a useful rung is recorded yet")
    if scene.current is None:
        return _first(scene, scene.revision, now, enough_since, settings)
    if scene.evidence.broken or scene.evidence.committed:
        return _involuntary(scene, scene.revision, now, enough_since, settings)
    if any(
        seat.epoch == scene.current.epoch and seat.phase is AgentPhase.PAUSED for _, seat in scene.present()
    ):
        return Begin(Stage.PAUSING, f"epoch {scene.current.epoch} is paused")
    return _growth(scene, scene.revision, now, settings)


def too_few(scene: Scene, revision: Revision) -> str:
    """ "1 of minNodes 2 are ready: slot 1 is Preparing (tokenising)"."""
    smallest = useful_rungs(revision.rungs)[0].nodes
    others = "; ".join(_unready(seat) for seat in scene.roster.seats if not seat.ready)
    return f"{len(scene.ready)} of minNodes {smallest} are ready" + (f": {others}" if others else "")


def _unready(seat: Seat) -> str:
    if seat.left_out:
        return f"slot {seat.slot} does not answer proposals"
    activity = f" ({seat.report.activity})" if seat.report and seat.report.activity else ""
    return f"slot {seat.slot} is {seat.phase.value}{activity}"


def _first(
    scene: Scene, revision: Revision, now: float, enough_since: float | None, settings: Settings
) -> Begin | Wait:
    if scene.rung is None or enough_since is None:
        return Wait(too_few(scene, revision))
    return _gather(
        scene, useful_rungs(revision.rungs)[-1].nodes, now, enough_since, settings, "the run starts"
    )


def _gather(
    scene: Scene, wanted: int, now: float, enough_since: float, settings: Settings, reason: str
) -> Begin | Wait:
    """Nobody trains, so waiting a little for more members costs less than a change right after the start."""
    left = enough_since + settings.start_wait_seconds - now
    if len(scene.ready) < wanted and left > 0:
        return Wait(
            f"{len(scene.ready)} of {wanted} nodes are ready; starting with fewer "
            f"after {settings.start_wait_seconds:.0f} s"
        )
    return Begin(Stage.PREPARING, reason)


def _involuntary(
    scene: Scene, revision: Revision, now: float, enough_since: float | None, settings: Settings
) -> Begin | Wait:
    evidence, current = scene.evidence, scene.current
    if evidence.absent:
        slots = ", ".join(str(member.slot) for member in evidence.absent)
        return Wait(f"slots {slots} have not been heard since this service started")
    if evidence.may_repeat and evidence.first_end_at is not None and not scene.advanced:
        deaths = scene.lineage.futile_deaths + 1
        pause = backoff_seconds(deaths, settings.backoff_cap_seconds)
        if now < evidence.first_end_at + pause:
            what = "ranks died" if evidence.trigger is Trigger.PROCESS_DIED else "the restore failed"
            return Wait(f"backing off for {pause:.0f} s: {what} {deaths} times in a row without progress")
    last_loss = evidence.last_loss_at
    if not evidence.ended and last_loss is not None and now < last_loss + settings.settle_seconds:
        return Wait("losses are settling")
    if scene.rung is None or enough_since is None:
        return Wait(too_few(scene, revision))
    reason = describe(scene)
    if current is not None and not scene.present():
        wanted = min(current.rung.nodes, useful_rungs(revision.rungs)[-1].nodes)
        return _gather(scene, wanted, now, enough_since, settings, reason)
    return Begin(Stage.PREPARING, reason)


def describe(scene: Scene) -> str:
    """Why the current epoch ends, in one line."""
    evidence = scene.evidence
    parts = [
        f"slot {loss.lost.slot} on {loss.lost.node} is lost ({loss.lost.reason})"
        for loss in evidence.losses.values()
    ]
    parts += [
        f"rank {rank_exit.local_rank} of slot {rank_exit.slot} ended with {rank_exit.exit_code}"
        for rank_exit in evidence.exits.values()
    ]
    if evidence.restore_failed:
        parts.append(f"restore failed ({', '.join(sorted(evidence.damaged)) or 'nothing is damaged'})")
    if not parts and (evidence.ended or evidence.committed):
        parts.append("ranks are stopped")
    return "; ".join(parts) or "more nodes are ready"


def grow_hold_seconds(revision: Revision, settings: Settings) -> float:
    scale = revision.spec.get("scale")
    value = scale.get("growHoldSeconds") if isinstance(scale, dict) else None
    return float(value) if isinstance(value, int | float) else settings.grow_hold_default_seconds


def _growth(scene: Scene, revision: Revision, now: float, settings: Settings) -> Begin | Wait:
    current, rung = scene.current, scene.rung
    if current is None or rung is None or rung.nodes <= current.rung.nodes:
        return Wait("")
    if scene.suspicious or not scene.carrying_on():
        return Wait(f"growing to {rung.nodes} nodes when epoch {current.epoch} runs on all its members")
    if scene.first_step_at is None:
        return Wait(f"growing to {rung.nodes} nodes when epoch {current.epoch} has reached its first step")
    hold = grow_hold_seconds(revision, settings)
    if now < scene.first_step_at + hold:
        return Wait(f"growing to {rung.nodes} nodes {hold:.0f} s after the first step (growHoldSeconds)")
    return Begin(Stage.PAUSING, f"{len(scene.ready)} nodes are ready: growing from {current.rung.nodes}")
