"""When to write snapshots and durable checkpoints. Pure: times are handed in.

Rank 0 asks these and votes; the step's all-reduce makes its vote everyone's. A snapshot interval that was
left out is the smallest at which the stall stays within STALL_SHARE of the time spent stepping, as measured
in this epoch.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

STALL_SHARE = 0.02
RETRY_SECONDS = 5.0  # after a failed save
RETRY_CAP_SECONDS = 300.0
_STEPS_KEPT = 50
_SNAPSHOTS_KEPT = 5


class SnapshotPolicy:
    def __init__(self, interval_steps: int | None) -> None:
        """`interval_steps`: as specified; None to measure, 0 for no snapshots."""
        self._specified = interval_steps
        self._step_seconds: deque[float] = deque(maxlen=_STEPS_KEPT)
        self._snapshot_seconds: deque[float] = deque(maxlen=_SNAPSHOTS_KEPT)
        self._last: int | None = None

    def stepped(self, seconds: float) -> None:
        self._step_seconds.append(seconds)

    def taken(self, step: int) -> None:
        self._last = step

    def cost(self, seconds: float) -> None:
        """The agreed duration of the newest snapshot."""
        self._snapshot_seconds.append(seconds)

    def interval_steps(self) -> int:
        """Steps from one snapshot to the next; 0 for never."""
        if self._specified is not None:
            return self._specified
        if not self._snapshot_seconds or not self._step_seconds:
            return 1
        share = median(self._snapshot_seconds) / median(self._step_seconds)
        return max(1, math.ceil(share / STALL_SHARE))

    def due(self, step: int) -> bool:
        """Whether to take a snapshot after `step`. The first step of an epoch always gets one: until then, a
        second failure would go back to the restore point of this one."""
        interval = self.interval_steps()
        return interval > 0 and (self._last is None or step - self._last >= interval)


class DurablePolicy:
    def __init__(self, interval_seconds: float | None, interval_steps: int | None, *, now: float) -> None:
        """`now`: when the newest checkpoint was begun, by the clock that `due` is asked with. An interval goes on over
        restarts; otherwise a run that fails more often than that would never save.
        """
        self._seconds = interval_seconds
        self._steps = interval_steps
        self._last_at = now
        self._again_at = 0.0
        self._failures = 0
        self._writing = False
        self._owed = False  # its step passed while another one was being written

    def begun(self, now: float) -> None:
        self._last_at = now
        self._writing = True
        self._owed = False

    def saved(self) -> None:
        """The checkpoint that was begun is there."""
        self._writing = False
        self._failures = 0

    def failed(self, now: float) -> None:
        """The checkpoint was not made: try again after a pause that doubles from failure to failure."""
        self._writing = False
        self._again_at = now + min(RETRY_SECONDS * 2.0**self._failures, RETRY_CAP_SECONDS)
        self._failures += 1

    def due(self, step: int, now: float) -> bool:
        """Whether to save after `step`; never while one is being written. Step intervals are multiples, so they do not
        depend on restarts; one that passes meanwhile is made up for afterwards.
        """
        by_steps = self._steps is not None and self._steps > 0 and step % self._steps == 0
        if self._writing:
            self._owed = self._owed or by_steps
            return False
        if self._failures:
            return now >= self._again_at
        by_time = self._seconds is not None and now - self._last_at >= self._seconds
        return by_time or by_steps or self._owed
