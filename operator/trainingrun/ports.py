"""The ports between decisions and the world: what the controller and membership need of a cluster.

One interface, two adapters (local processes, Kubernetes). An adapter translates; it decides nothing. All values
are frozen and neutral: nothing here looks like a pod dictionary, except the rendered pod template, which is opaque.

A run is named by its key: `namespace/name` on a cluster, the bare name locally (`RunObject.key`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from trainingrun.protocol.messages import DurableCheckpoint, RunView, Termination
from trainingrun.protocol.records import Epoch, Revision


class Conflict(Exception):
    """Something of that name exists already (create), or changed since it was read (status)."""


class Unavailable(Exception):
    """The other side cannot be reached now; try again later."""


class Refused(Exception):
    """The other side will not have it, and the same again would be refused again: quota, policy, a missing account.

    `reason` is a word (Kubernetes's: Forbidden, Invalid, …); the text is the other side's own message.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Denied(Exception):
    """A caller of the membership service is not who it must be. Its text may be told to the caller."""


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
    # Unschedulable, NodeLost (its node does not answer), CrashLoopBackOff, OOMKilled, Evicted, ImagePullBackOff, …
    reason: str = ""
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
    namespace: str = ""
    template: Mapping[str, Any] = field(default_factory=dict)  # as frozen in the revision


@dataclass(frozen=True)
class Claim:
    """A PersistentVolumeClaim that a run names."""

    name: str
    access_modes: tuple[str, ...]  # ReadWriteOnce, ReadWriteMany, …
    phase: str  # Pending | Bound | Lost


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
    namespace: str = ""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True)
class Caller:
    """Who an agent or the controller has proven to be, towards the membership service."""

    run_uid: str = ""  # "" for the controller, which may look at every run
    slot: int = -1
    incarnation: int = -1
    pod: str = ""
    namespace: str = ""

    @property
    def is_controller(self) -> bool:
        return not self.run_uid


class Gate(Protocol):
    """Checks who calls the membership service."""

    def known(self, token: str) -> Caller | None:
        """Who holds this bearer token, if that was found out before and still counts. At once, from memory."""

    def admit(self, token: str) -> Caller:
        """Find out who holds this bearer token. Takes its time: called from threads.

        What `known` says stays good while nothing can be found out. Raises Denied, and Unavailable.
        """


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
        """Create it, or raise Conflict when its name is taken, and Refused. Never overwrites."""


class ControlPort(Records, Protocol):
    """Everything that reconcile() reads and does. Any call may raise Unavailable."""

    def run_keys(self) -> Sequence[str]:
        """The keys of all runs. A real LIST."""

    def get_run(self, key: str) -> RunObject | None: ...

    def pods(self, key: str) -> Sequence[Pod]:
        """All pods that have this run's label or one of its names, foreign ones included. A real LIST."""

    def nodes(self) -> Sequence[Node]: ...

    def claims(self, key: str, names: Collection[str]) -> Mapping[str, Claim | None]:
        """The claims of these names beside the run; None for one that is not there."""

    def membership(self, run_uid: str) -> RunView | None:
        """What membership knows; None when it cannot be asked or does not know the run."""

    def pod_template(self, run: RunObject, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        """The rendered template of this run's pods for a resolved spec, to be frozen in the revision."""

    def create_pod(self, template: PodTemplate) -> None:
        """Raises Conflict when the name is taken, and Refused."""

    def delete_pod(self, key: str, name: str, uid: str) -> None:
        """Ask for deletion of that very pod; one that is gone already is fine."""

    def write_status(self, key: str, status: Mapping[str, Any], resource_version: str) -> None:
        """Raises Conflict when the object changed since `resource_version`."""

    def emit(self, key: str, event: EventRecord) -> None: ...

    def wait_for_change(self, timeout_seconds: float) -> Collection[str] | None:
        """Return early when something may have changed: the keys concerned, or None for "any run".

        Empty when nothing was heard.
        """
