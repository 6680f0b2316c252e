"""One consistent look at a run, classified. The only input of `decide`, besides the time.

Pods are sorted here into seats: the current incarnation, earlier ones, those that are being deleted, and
foreign pods that merely have one of our names. Nothing after this looks at an unsorted list. Pure; built
by `reconcile.observe`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainingrun.ports import Node, Pod, PodPhase, RunObject
from trainingrun.protocol.messages import RunView, Termination
from trainingrun.protocol.records import Epoch, Revision, Rung

ENDED = (PodPhase.SUCCEEDED, PodPhase.FAILED)


@dataclass(frozen=True)
class PlanResult:
    """The planner's answer, as it is frozen in a revision."""

    rungs: tuple[Rung, ...]  # ascending by nodes
    plan: Mapping[str, Any]  # memory bill, predictions, reasons; plain JSON data
    planner_version: str
    reason: str = ""  # why this shape


@dataclass(frozen=True)
class PlanFailure:
    """Nothing fits. The message names what is needed, what there is, and the nearest that fits."""

    message: str


@dataclass(frozen=True)
class PlanPending:
    """The planner is at work."""


PlanOutcome = PlanResult | PlanFailure | PlanPending | None  # None: nobody has asked


@dataclass(frozen=True)
class Seat:
    """All pods of one slot."""

    slot: int
    current: Pod | None = None  # the newest incarnation, unless it is being deleted
    earlier: tuple[Pod, ...] = ()  # older incarnations that nobody has deleted yet
    terminating: tuple[Pod, ...] = ()
    foreign: tuple[Pod, ...] = ()  # of another owner, under a name of ours
    highest: int = -1  # highest incarnation seen anywhere, foreign and terminating ones included
    joined: int = -1  # highest incarnation that was a member of an epoch, as far as known

    @property
    def own(self) -> tuple[Pod, ...]:
        current = () if self.current is None else (self.current,)
        return (*self.earlier, *self.terminating, *current)

    @property
    def live(self) -> Pod | None:
        """The current pod while it waits or runs."""
        return None if self.current is None or self.current.phase in ENDED else self.current


@dataclass(frozen=True)
class Observed:
    run: RunObject
    spec: Mapping[str, Any] | None  # resolved; None when it is invalid
    spec_error: str = ""
    revision: Revision | None = None  # the newest
    taken_revision: str = ""  # name of the revision to create, when another run's record has it
    before: Epoch | None = None  # the record before `last`
    last: Epoch | None = None  # the newest record that status has accounted for
    fresh: tuple[Epoch, ...] = ()  # records that status has not accounted for, ascending
    seats: Mapping[int, Seat] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    view: RunView | None = None
    plan: PlanOutcome = None
    pod_template: Mapping[str, Any] = field(default_factory=dict)  # rendered; only while there is no revision

    @property
    def epoch(self) -> Epoch | None:
        """The newest record."""
        return self.fresh[-1] if self.fresh else self.last

    @property
    def pods(self) -> tuple[Pod, ...]:
        """All pods that are ours."""
        return tuple(pod for slot in sorted(self.seats) for pod in self.seats[slot].own)

    @property
    def terminations(self) -> tuple[tuple[Pod, Termination], ...]:
        """Last words of pods that ended for good."""
        return tuple(
            (pod, pod.termination) for pod in self.pods if pod.termination is not None and pod.phase in ENDED
        )


def classify(
    run_uid: str, pods: Sequence[Pod], records: Sequence[Epoch] = (), view: RunView | None = None
) -> dict[int, Seat]:
    """Seats by slot. Records and membership also tell which incarnations there have been: a pod can be
    gone.
    """
    members = [(member.slot, member.incarnation) for record in records for member in record.members]
    if view is not None and view.run_uid == run_uid:
        members += [(member.slot, member.incarnation) for member in view.members]
    joined: dict[int, int] = {}
    for slot, incarnation in members:
        joined[slot] = max(joined.get(slot, -1), incarnation)

    by_slot: dict[int, list[Pod]] = {slot: [] for slot in joined}
    for pod in pods:
        by_slot.setdefault(pod.slot, []).append(pod)
    return {
        slot: _seat(run_uid, slot, sorted(found, key=lambda pod: pod.incarnation), joined.get(slot, -1))
        for slot, found in sorted(by_slot.items())
    }


def _seat(run_uid: str, slot: int, pods: Sequence[Pod], joined: int) -> Seat:
    ours = [pod for pod in pods if pod.run_uid == run_uid]
    standing = [pod for pod in ours if not pod.terminating]
    return Seat(
        slot=slot,
        current=standing[-1] if standing else None,
        earlier=tuple(standing[:-1]),
        terminating=tuple(pod for pod in ours if pod.terminating),
        foreign=tuple(pod for pod in pods if pod.run_uid != run_uid),
        highest=max([joined, *(pod.incarnation for pod in pods)]),
        joined=joined,
    )
