"""The only place where the membership service reads a clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds that never go back (monotonic); stands still while the machine sleeps."""

    def wall(self) -> float:
        """Seconds since 1970, for records and people."""


class SystemClock:
    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()
