"""How one thread of the line to membership bears with failures: how long to wait, and what to say about it once.

The same trouble is said when it begins and when it is over, not at each attempt; another trouble is said too.
"""

from __future__ import annotations

import logging
import time

logger = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.1


class Trouble:
    def __init__(self) -> None:
        self._since = 0.0  # monotonic; 0: none
        self._kind = ""
        self._kind_since = 0.0
        self._pause = _FIRST_PAUSE_SECONDS

    def over(self) -> None:
        if self._since:
            logger.info("membership is back after %.1f s", time.monotonic() - self._since)
        self._since, self._kind, self._pause = 0.0, "", _FIRST_PAUSE_SECONDS

    def met(self, kind: str, text: str, level: int = logging.WARNING) -> float:
        """Trouble of this kind, again or for the first time: for how many seconds it has gone on without a change."""
        now = time.monotonic()
        self._since = self._since or now
        if kind != self._kind:
            self._kind, self._kind_since = kind, now
            logger.log(level, "%s", text)
        return now - self._kind_since

    def wait(self, longest_seconds: float) -> None:
        time.sleep(self._pause)
        self._pause = min(self._pause * 2, longest_seconds)
