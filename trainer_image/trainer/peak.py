"""The most memory that a rank's training ever held, for the planner, which predicts it.

On cores: what the process has beyond what it had before its model was built. Freed memory stays with the process
(`allocator.keep_memory`), so what is resident after some steps is what the fullest moment took; snapshots are shared
memory and do not count. Where nothing can be read, nothing is claimed: 0.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

_STATUS = Path("/proc/self/status")
_FIELD = "RssAnon:"
FIRST_STEP = 5  # of an epoch: by then each kind of moment has been there
EVERY_STEPS = 50


def private_bytes(read: Callable[[], str] = _STATUS.read_text) -> int:
    """What only this process holds, resident; 0 where the kernel does not say."""
    try:
        lines = read().splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith(_FIELD):
            number, unit = line.removeprefix(_FIELD).split()
            return int(number) * 1024 if unit == "kB" else 0
    return 0


class PeakMeter:
    """Made before the model is. `kept`: whether freed memory stays, without which nothing is measured."""

    def __init__(self, *, kept: bool, read: Callable[[], int] = private_bytes) -> None:
        self._read = read
        self._before = read() if kept else 0
        self._peak = 0

    def peak_bytes(self) -> int:
        """0 where it is not known. Never becomes less."""
        if self._before:
            self._peak = max(self._peak, self._read() - self._before)
        return self._peak


def due(steps_of_epoch: int) -> bool:
    """Whether ranks compare their peaks after so many steps of this epoch: the same on each of them."""
    return steps_of_epoch == FIRST_STEP or steps_of_epoch % EVERY_STEPS == 0
