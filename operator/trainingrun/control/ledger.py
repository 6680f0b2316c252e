"""Where the time of a run went: productive stepping, or one of the lost parts.

The ledger is a cursor that starts at the creation of the run and only moves forward; each move is booked
to one part. So the parts always add up to the time that passed, whatever the clocks of the trainers say.
Whole milliseconds, so that a controller that restarts goes on from status exactly where the one before
stopped. Pure; used by `folding` for epochs that ended and by `reporting` for the one that runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from trainingrun.api.constants import LostPart
from trainingrun.control.failures import is_disruption
from trainingrun.protocol.records import Epoch, EpochSummary, Trigger

NEVER_STEPPED = EpochSummary()
_FLIGHT_SECONDS = (
    5.0  # news of a step may take this long, beyond a few steps, before silence counts as lost time
)
_FLIGHT_STEPS = 3
_QUEUE_AFTER_SECONDS = 10.0  # agreeing on an epoch takes less; what takes longer waits for nodes


@dataclass(frozen=True)
class Ledger:
    """Milliseconds since the creation of the run."""

    productive: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)
    furthest_step: int = 0  # highest step that was ever reached; 0: none yet

    @property
    def wall(self) -> int:
        return self.productive + sum(self.lost.values())

    @property
    def permille(self) -> int:
        return 1000 * self.productive // self.wall if self.wall else 0

    def book(self, part: str, created_at: float, until: float) -> Ledger:
        """Move the cursor to `until` (seconds since 1970) and book the way there as lost; never backwards."""
        way = max(0, millis(until) - millis(created_at) - self.wall)
        return self._add(part, way) if way else self

    def _add(self, part: str, amount: int) -> Ledger:
        return replace(self, lost={**self.lost, part: self.lost.get(part, 0) + amount})

    def _productive_until(self, created_at: float, until: float, stalled_permille: int) -> Ledger:
        way = max(0, millis(until) - millis(created_at) - self.wall)
        stalled = way * min(max(stalled_permille, 0), 1000) // 1000
        booked = replace(self, productive=self.productive + way - stalled)
        return booked._add(LostPart.CHECKPOINT, stalled) if stalled else booked

    def _redo(self, steps: int, step_seconds: float) -> Ledger:
        """Steps that will be trained again: what they took is not productive after all."""
        if steps <= 0:
            return self
        each = step_seconds * 1000 or self.productive / max(self.furthest_step, 1)
        amount = min(round(steps * each), self.productive)
        return replace(self, productive=self.productive - amount)._add(LostPart.REDONE, amount)


def millis(seconds: float) -> int:
    return round(seconds * 1000)


def summary_of(epoch: Epoch | None, summary: EpochSummary | None) -> EpochSummary:
    """The summary if it is of that epoch, else that of an epoch without a step."""
    if epoch is None or summary is None or summary.epoch != epoch.epoch or summary.first_step_at <= 0:
        return NEVER_STEPPED
    return summary


def steps_lost(ended: Epoch | None, record: Epoch) -> int:
    """Steps that were done before `record` and are not in its restore point."""
    if ended is None:
        return 0
    done = summary_of(ended, record.previous).last_step or ended.restore.step
    return max(0, done - record.restore.step)


def close_epoch(
    ledger: Ledger, created_at: float, ended: Epoch | None, record: Epoch, resizes: Collection[int] = ()
) -> Ledger:
    """Book everything up to the creation of `record`, which ended the epoch before it.

    `resizes`: numbers of epochs that lost only members that were not wanted any more.
    """
    summary = summary_of(ended, record.previous)
    ledger = _book_run(ledger, created_at, ended, summary, record.detected_at, resizes)
    stop = _stop_part(ledger, record, resizes)
    if summary.first_step_at > 0:
        seen = stop if record.epoch in resizes else LostPart.DETECT
        ledger = ledger.book(seen, created_at, record.detected_at)
    quick = record.detected_at + _QUEUE_AFTER_SECONDS
    ledger = ledger.book(stop, created_at, min(record.created_at, quick))
    queue = LostPart.QUEUE if ledger.furthest_step else LostPart.START
    ledger = ledger.book(queue, created_at, record.created_at)
    return ledger._redo(steps_lost(ended, record), summary.step_seconds)


def with_running_epoch(
    ledger: Ledger,
    created_at: float,
    epoch: Epoch | None,
    summary: EpochSummary | None,
    now: float,
    resizes: Collection[int] = (),
) -> Ledger:
    """The ledger as of now. News in flight are not judged: without silence it is as of the newest step."""
    known = summary_of(epoch, summary)
    ledger = _book_run(ledger, created_at, epoch, known, now, resizes)
    if known.first_step_at <= 0 or epoch is None:
        return ledger
    patience = _FLIGHT_SECONDS + _FLIGHT_STEPS * known.step_seconds
    silent = now - known.last_step_at > patience
    return ledger.book(LostPart.DETECT, created_at, now) if silent else ledger


def with_last_epoch(
    ledger: Ledger,
    created_at: float,
    epoch: Epoch | None,
    summary: EpochSummary | None,
    now: float,
    resizes: Collection[int] = (),
) -> Ledger:
    """The final ledger of a run that completed: what follows the last step is the final checkpoint and
    export.
    """
    known = summary_of(epoch, summary)
    ledger = _book_run(ledger, created_at, epoch, known, now, resizes)
    return ledger.book(LostPart.CHECKPOINT, created_at, now)


def _book_run(
    ledger: Ledger,
    created_at: float,
    epoch: Epoch | None,
    summary: EpochSummary,
    until: float,
    resizes: Collection[int],
) -> Ledger:
    """From the creation of an epoch to its last step; to `until` if it never stepped."""
    if summary.first_step_at <= 0:
        return ledger.book(_stop_part(ledger, epoch, resizes), created_at, until)
    ledger = ledger.book(_stop_part(ledger, epoch, resizes), created_at, summary.first_step_at)
    ledger = ledger._productive_until(created_at, summary.last_step_at, summary.snapshot_stall_permille)
    return replace(ledger, furthest_step=max(ledger.furthest_step, summary.last_step))


def _stop_part(ledger: Ledger, epoch: Epoch | None, resizes: Collection[int]) -> LostPart:
    """What a stop of training on the way into `epoch` is booked to."""
    if ledger.furthest_step == 0 or epoch is None:
        return LostPart.START
    if epoch.epoch in resizes or (epoch.trigger is Trigger.JOINED and not is_disruption(epoch)):
        return LostPart.RESIZE
    return LostPart.RESTORE
