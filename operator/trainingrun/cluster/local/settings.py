"""Settings of the local cluster. The unit is in the name; defaults are Kubernetes's where it has them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LocalSettings:
    agent_command: tuple[str, ...] = ()  # what a pod runs; () = `<trainer python> -m trainer.agent`
    backoff_first_seconds: float = 10.0  # the first restart is at once, the second after this, then doubling
    backoff_cap_seconds: float = 300.0
    backoff_reset_seconds: float = 600.0  # a container that ran this long starts counting anew
    grace_seconds: float = 10.0  # between SIGTERM and SIGKILL when a pod is deleted
    poll_seconds: float = 0.05  # how often a node looks at the state directory
    memory_folder: str = "/dev/shm"  # memory-backed; snapshots go to <folder>/trainingrun-<uid>/<pod>
    membership_timeout_seconds: float = 1.0  # how long membership may take to answer the controller
    restart_delay_seconds: float = 1.0  # before a supervised program is started again
