"""Which runs to look at and when: debounced, with back-off for those that failed. No clock and no threads.

A key is in the queue at most once. News brings it forward, except while it backs off after a failure. Used
by `loop`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class WorkQueue:
    first_backoff_seconds: float
    longest_backoff_seconds: float
    _due: dict[str, float] = field(default_factory=dict)
    _failures: dict[str, int] = field(default_factory=dict)
    _not_before: dict[str, float] = field(default_factory=dict)

    def add(self, key: str, at: float) -> None:
        """Look at `key` at that time, or earlier if that was planned already."""
        at = max(at, self._not_before.get(key, at))
        self._due[key] = min(at, self._due.get(key, at))

    def succeeded(self, key: str) -> None:
        self._failures.pop(key, None)
        self._not_before.pop(key, None)

    def failed(self, key: str, now: float, longest_seconds: float | None = None) -> float:
        """Back off: twice as long with each failure in a row, up to a limit. Returns the seconds until the next try."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        longest = self.longest_backoff_seconds if longest_seconds is None else longest_seconds
        delay = min(self.first_backoff_seconds * 2.0 ** min(count, 30), longest)
        self._not_before[key] = now + delay
        self._due[key] = now + delay
        return delay

    def forget(self, gone: Iterable[str]) -> None:
        for key in list(gone):
            for memory in (self._due, self._failures, self._not_before):
                memory.pop(key, None)

    def take(self, now: float) -> list[str]:
        """Keys that are due, longest waiting first; they leave the queue."""
        ready = sorted((at, key) for key, at in self._due.items() if at <= now)
        for _, key in ready:
            del self._due[key]
        return [key for _, key in ready]

    def next_due(self) -> float | None:
        return min(self._due.values(), default=None)

    def keys(self) -> set[str]:
        return {*self._due, *self._failures}
