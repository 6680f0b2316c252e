"""The test side's port: what a scenario does to a line of programs, and what it may look at.

Scenarios are written against `Line` and know nothing of processes or pods, so that they run unchanged on this machine
(`local_line`) and on a cluster (`cluster_line`). Waiting is by condition, never by time; what does not come true fails
with the end of every log.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

from trainingrun.api.constants import Reason
from trainingrun.cluster.local.processes import Process
from trainingrun.ports import EventRecord, Node, Pod
from trainingrun.protocol.messages import RunView
from trainingrun.protocol.records import Epoch, Revision

T = TypeVar("T")
NEVER_BEGINS = (Reason.INVALID_SPEC, Reason.PLAN_INFEASIBLE)


@dataclass(frozen=True)
class Moment:
    """Everything that can be seen of the run at one time."""

    view: RunView | None  # None: membership cannot be asked
    status: Mapping[str, Any]
    pods: Sequence[Pod]
    epochs: Sequence[Epoch]

    @property
    def step(self) -> int:
        """Newest step that membership knows of; 0 when there is none, or membership is away."""
        return self.view.progress.step if self.view is not None and self.view.progress is not None else 0

    @property
    def epoch(self) -> int:
        return self.epochs[-1].epoch if self.epochs else 0

    @property
    def members(self) -> int:
        """Nodes of the newest epoch."""
        return len(self.epochs[-1].members) if self.epochs else 0

    def is_true(self, condition: str) -> bool:
        conditions = self.status.get("conditions") or []
        return any(item["type"] == condition and item["status"] == "True" for item in conditions)

    @property
    def over(self) -> bool:
        return self.is_true("Complete") or self.hopeless

    @property
    def hopeless(self) -> bool:
        """It failed, or cannot begin without another manifest."""
        stalled = [item for item in self.status.get("conditions") or [] if item["type"] == "Stalled"]
        return self.is_true("Failed") or any(item["reason"] in NEVER_BEGINS for item in stalled)


class Line(ABC):
    """One run, its nodes, membership and controller. All of them run when the context is entered."""

    look_seconds = 0.05

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @abstractmethod
    def apply(self, manifest: Mapping[str, Any]) -> str:
        """Create or change the run; its uid."""

    # what can be seen

    @abstractmethod
    def moment(self) -> Moment: ...

    @abstractmethod
    def revisions(self) -> Sequence[Revision]: ...

    @abstractmethod
    def events(self) -> Sequence[EventRecord]: ...

    @abstractmethod
    def nodes(self) -> Sequence[Node]:
        """The nodes that work for the run."""

    @abstractmethod
    def node_of(self, slot: int) -> str: ...

    @abstractmethod
    def ranks(self, slot: int) -> Mapping[int, Process]:
        """The training processes of a seat, by local rank, as this machine's kernel knows them."""

    @abstractmethod
    def logs(self) -> str:
        """The end of every program's and pod's log, for the message of a test that failed."""

    @abstractmethod
    def files(self, pattern: str) -> Sequence[Path]:
        """Files of that name pattern that the ranks of all pods logged, those of pods that are gone included."""

    @abstractmethod
    def cache_dir(self) -> Path:
        """Where the nodes keep prepared data."""

    @abstractmethod
    def leaks(self) -> Sequence[str]:
        """What is left that should not be; to be asked after the context is left."""

    def objections(self) -> Sequence[str]:
        """What was seen while the run went on and must never be so; nothing where nobody looks all the time."""
        return ()

    # faults

    @abstractmethod
    def kill_rank(self, slot: int, local_rank: int) -> None: ...

    @abstractmethod
    def kill_agent(self, slot: int) -> None: ...

    @abstractmethod
    def kill_node(self, node: str) -> None:
        """The node and everything on it, at once, as a power cut."""

    @abstractmethod
    def start_node(self, node: str) -> None: ...

    @abstractmethod
    def stop_membership(self) -> None:
        """SIGSTOP: it is there, but does not answer."""

    @abstractmethod
    def continue_membership(self) -> None: ...

    @abstractmethod
    def kill_membership(self) -> None: ...

    @abstractmethod
    def start_membership(self) -> None: ...

    @abstractmethod
    def kill_controller(self) -> None: ...

    @abstractmethod
    def start_controller(self) -> None: ...

    # waiting

    def wait_for(
        self, condition: Callable[[Moment], T | None], what: str, timeout_seconds: float = 120.0
    ) -> T:
        """The first true value of `condition`. Fails with `what` and the logs when there is none in time."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            moment = self.moment()
            if value := condition(moment):
                return value
            if time.monotonic() > deadline:
                self.fail(f"not within {timeout_seconds:g} s: {what}", moment)
            time.sleep(self.look_seconds)

    def wait_for_step(self, step: int, timeout_seconds: float = 120.0) -> Moment:
        """Until membership knows of that step or a later one."""

        def reached(moment: Moment) -> Moment | None:
            if moment.hopeless:
                self.fail(f"the run failed before step {step}", moment)
            return moment if moment.step >= step else None

        return self.wait_for(reached, f"step {step}", timeout_seconds)

    def wait_for_end(self, timeout_seconds: float = 240.0) -> Moment:
        """Until the run is Complete; fails when it is Failed."""
        found = self.wait_for(lambda now: now if now.over else None, "the end of the run", timeout_seconds)
        if not found.is_true("Complete"):
            self.fail("the run failed", found)
        return found

    def fail(self, message: str, moment: Moment) -> NoReturn:
        events = "\n".join(f"{event.at:.1f} {event.reason}: {event.message}" for event in self.events())
        raise AssertionError(f"{message}\nseen: {moment}\nevents:\n{events}\n{self.logs()}")
