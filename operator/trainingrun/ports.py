"""The ports between decisions and the world: what the controller and membership need of a cluster.

One interface, several adapters (local processes now, Kubernetes next). An adapter translates; it decides nothing.
All values are frozen and neutral: nothing here looks like a pod dictionary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from trainingrun.protocol.messages import DurableCheckpoint, RunView, Termination
from trainingrun.protocol.records import Epoch, Revision


class Conflict(Exception):
    """Something of that name exists already (create), or changed since it was read (status)."""


class Unavailable(Exception):
    """The other side cannot be reached now; try again later."""


class PodPhase(str, Enum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True)
class Pod:
    name: str
    uid: str
    run_uid: str  # of the owner; "" for a foreign pod that has one of our names
    slot: int
    incarnation: int
    revision: str
    phase: PodPhase
    node: str  # "" while pending
    ready: bool
    terminating: bool  # deletion asked for, not yet gone
    restarts: int
    reason: str = ""  # Unschedulable, NodeLost, CrashLoopBackOff, …
    message: str = ""
    crash_looping_seconds: float = 0.0
    termination: Termination | None = None  # of the last container that ended
    created_at: float = 0.0


@dataclass(frozen=True)
class Node:
    name: str
    ready: bool
    capacity: Mapping[str, str] = field(
        default_factory=dict
    )  # Kubernetes quantities: {"cpu": "2", "memory": "8Gi"}


@dataclass(frozen=True)
class PodTemplate:
    """A pod to create. Its name follows from (run, slot, incarnation); see protocol.names.pod_name."""

    run: str
    run_uid: str
    slot: int
    incarnation: int
    revision: str
    resources: Mapping[str, str]
    processes: int


@dataclass(frozen=True)
class RunObject:
    """A TrainingRun as stored: the manifest as the user wrote it, and its status."""

    name: str
    uid: str
    generation: int
    resource_version: str
    manifest: Mapping[str, Any]
    status: Mapping[str, Any]
    deleting: bool
    created_at: float


@dataclass(frozen=True)
class EventRecord:
    at: float
    type: str  # Normal | Warning
    reason: str  # CamelCase, from api.constants
    message: str


class Records(Protocol):
    """Create-only records. Used by the controller (revisions) and by membership (epochs)."""

    def run_exists(self, run_uid: str) -> str | None:
        """The name of the run that has this uid, or None when it is gone."""

    def saved_checkpoint(self, run_uid: str) -> DurableCheckpoint | None:
        """The newest durable checkpoint that the run's status names; None when it names none."""

    def revisions(self, run_uid: str) -> Sequence[Revision]:
        """All revisions, ascending."""

    def epochs(self, run_uid: str, after: int = 0) -> Sequence[Epoch]:
        """Epochs with a number greater than `after`, ascending."""

    def create(self, record: Revision | Epoch) -> None:
        """Create it, or raise Conflict when its name is taken. Never overwrites."""


class ControlPort(Records, Protocol):
    """Everything that reconcile() reads and does."""

    def run_names(self) -> Sequence[str]: ...

    def get_run(self, name: str) -> RunObject | None: ...

    def pods(self, run: str) -> Sequence[Pod]:
        """All pods that have this run's label or one of its names, foreign ones included. A real LIST."""

    def nodes(self) -> Sequence[Node]: ...

    def membership(self, run_uid: str) -> RunView | None:
        """What membership knows; None when it cannot be asked or does not know the run."""

    def create_pod(self, template: PodTemplate) -> None:
        """Raises Conflict when the name is taken."""

    def delete_pod(self, name: str, uid: str) -> None:
        """Ask for deletion of that very pod; one that is gone already is fine."""

    def write_status(self, name: str, status: Mapping[str, Any], resource_version: str) -> None:
        """Raises Conflict when the object changed since `resource_version`."""

    def emit(self, run: str, event: EventRecord) -> None: ...

    def wait_for_change(self, timeout_seconds: float) -> None:
        """Return early when something may have changed."""
