"""What rank 0 tells its agent about the running epoch: the newest step, and the epoch's summary so far.

Keeps the sums; decides nothing. Times are handed in: `at` is seconds since 1970, durations are seconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from statistics import median

from trainer.state import TrainingState
from trainingrun.protocol.messages import Progress
from trainingrun.protocol.records import Epoch, EpochSummary, MachineSpeed, RestoreSource

_STEPS_KEPT = 101


class Reporter:
    def __init__(self, record: Epoch, total_steps: int) -> None:
        restore, previous = record.restore, record.previous
        durable, durable_step = previous.durable, previous.durable_step
        if restore.source is RestoreSource.DURABLE:
            durable, durable_step = restore.manifest, restore.step
        self.summary = EpochSummary(epoch=record.epoch, durable=durable, durable_step=durable_step)
        self._total_steps = total_steps
        self._step_seconds: deque[float] = deque(maxlen=_STEPS_KEPT)
        self._data_waits: deque[float] = deque(maxlen=_STEPS_KEPT)
        self._step_tokens = 0
        self._stepping_seconds = 0.0
        self._snapshot_seconds = 0.0
        self._save_problem = ""

    def restored(self, seconds: float) -> None:
        self.summary = replace(self.summary, restore_seconds=seconds)

    def stepped(
        self, state: TrainingState, *, at: float, seconds: float, tokens: int, data_wait: float
    ) -> None:
        self._step_seconds.append(seconds)
        self._data_waits.append(data_wait)
        self._stepping_seconds += seconds
        self._step_tokens = tokens
        if not self.summary.first_step_at:
            self.summary = replace(self.summary, first_step_at=at, first_step=state.step)
        self.summary = replace(
            self.summary,
            last_step=state.step,
            last_step_at=at,
            tokens=state.tokens,
            step_seconds=median(self._step_seconds),
            data_wait_seconds=median(self._data_waits),
            snapshot_stall_permille=self._stall_permille(),
        )

    def snapshot_taken(self, seconds: float) -> None:
        self._snapshot_seconds += seconds
        self.summary = replace(self.summary, snapshot_stall_permille=self._stall_permille())

    def peaked(self, peak_bytes: int) -> None:
        """The fullest rank of all; 0 where that is not known."""
        self.summary = replace(self.summary, peak_bytes=max(self.summary.peak_bytes, peak_bytes))

    def measured(self, speed: MachineSpeed) -> None:
        self.summary = replace(self.summary, speed=speed)

    def save_failed(self, problem: str) -> None:
        self._save_problem = problem

    def saved(self, name: str, step: int) -> None:
        self._save_problem = ""
        self.summary = replace(self.summary, durable=name, durable_step=step)

    def progress(self, state: TrainingState) -> Progress:
        seconds = self.summary.step_seconds
        return Progress(
            step=state.step,
            loss=state.loss,
            tokens=state.tokens,
            tokens_per_second=self._step_tokens / seconds if seconds else 0.0,
            learning_rate=state.learning_rate,
            total_steps=self._total_steps,
            summary=self.summary,
            save_problem=self._save_problem,
        )

    def _stall_permille(self) -> int:
        spent = self._stepping_seconds + self._snapshot_seconds
        return round(1000 * self._snapshot_seconds / spent) if spent else 0
