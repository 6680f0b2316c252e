"""When a container that ended is started again: the kubelet's rule. Pure; called by the node.

The first restart is at once, the next after `first` seconds, then doubling up to `cap`. A container that
ran for `reset` seconds starts the count anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainingrun.cluster.local.settings import LocalSettings


@dataclass(frozen=True)
class Backoff:
    settings: LocalSettings
    failures: int = 0

    def after(self, ran_seconds: float) -> tuple[float, Backoff]:
        """Seconds to wait after a container that ran this long, and the state after it."""
        failures = 0 if ran_seconds >= self.settings.backoff_reset_seconds else self.failures
        delay = 0.0
        if failures > 0:
            doublings = min(failures - 1, 30)
            delay = min(self.settings.backoff_first_seconds * 2**doublings, self.settings.backoff_cap_seconds)
        return delay, Backoff(self.settings, failures + 1)
