"""Says in the agent's own log how training goes, for those who read a pod's log: the first step, then now and then.

Only the node of rank 0 hears of steps, so only its agent says anything. Called by the elastic agent.
"""

from __future__ import annotations

import logging

from trainingrun.protocol.messages import Progress

logger = logging.getLogger(__name__)

_EVERY_SECONDS = 10.0


class StepLog:
    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._said = (0, 0)  # (epoch, step)
        self._said_at = 0.0

    def look(self, progress: Progress | None, now: float, last: bool = False) -> None:
        """`now`: monotonic seconds; `last`: the ranks have ended, so what was not said yet is said."""
        if not self._wanted or progress is None:
            return
        current = (progress.summary.epoch, progress.step)
        first = current[0] != self._said[0]
        if current != self._said and (first or last or now - self._said_at >= _EVERY_SECONDS):
            self._said, self._said_at = current, now
            logger.info(
                "step %d of %d: loss %.4f, %.0f tokens/s, %d tokens",
                progress.step,
                progress.total_steps,
                progress.loss,
                progress.tokens_per_second,
                progress.tokens,
            )
