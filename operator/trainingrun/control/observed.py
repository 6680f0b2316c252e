"""One consistent look at a run, classified. The only input of `decide`, besides the time.

Pods are sorted here into seats: the current incarnation, earlier ones, those that are being deleted, and
foreign pods that merely have one of our names. Nothing after this looks at an unsorted list. Pure; built
by `reconcile.observe`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from trainingrun.ports import Claim, Node, Pod, PodPhase, RunObject
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
class Refusal:
    """A pod or record that the API server would not have. Remembered by `refusal_book`, not by the world."""

    reason: str  # a word: Forbidden, Invalid, …
    message: str  # the API server's own
    count: int  # of tries in a row
    since: float  # of the first of them, seconds since 1970
    at: float  # of the last of them
    generation: int = 0  # of the run at that time
    beside: frozenset[str] = frozenset()  # uids of the run's pods that counted against a quota then


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
    def misses(self) -> int:
        """How many pods in a row never became a member of an epoch, the newest included."""
        return max([pod.incarnation for pod in self.own], default=self.joined) - self.joined

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
    pod_template: Mapping[str, Any] = field(default_factory=dict)  # rendered; only when it is to be frozen
    claims: Mapping[str, Claim | None] = field(default_factory=dict)  # only while there is no revision
    refused: Mapping[int, Refusal] = field(default_factory=dict)  # the next pod of these slots
    refused_record: Refusal | None = None  # the revision
    just_refused: bool = False  # some of these are of a moment ago, and this look is only for saying so

    @cached_property
    def silences(self) -> Mapping[tuple[int, int], float]:
        """Whom membership knows, by (slot, incarnation): seconds since it heard from each."""
        members = () if self.view is None else self.view.members
        return {(member.slot, member.incarnation): member.silent_seconds for member in members}

    @cached_property
    def counting(self) -> frozenset[str]:
        """The uids of the run's pods that count against a quota: all that have not ended, terminating ones too."""
        return frozenset(pod.uid for pod in self.pods if pod.phase not in ENDED)

    @property
    def epoch(self) -> Epoch | None:
        """The newest record."""
        return self.fresh[-1] if self.fresh else self.last

    @property
    def lost_revision(self) -> str:
        """Name of the revision with which the run began, when its record is gone. Nothing may take its place: what
        trains would meet a spec and a plan that are not its own.
        """
        if self.revision is not None:
            return ""
        named = str((self.run.status.get("resolved") or {}).get("revision", ""))
        return named or (self.epoch.revision if self.epoch is not None else "")

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
    joined: dict[int, int] = {}
    for member in (member for record in records for member in record.members):
        joined[member.slot] = max(joined.get(member.slot, -1), member.incarnation)
    known = dict(joined)
    # One that only talks to membership has not shown yet that it can train: it is known, but has not joined.
    for heard in view.members if view is not None and view.run_uid == run_uid else ():
        known[heard.slot] = max(known.get(heard.slot, -1), heard.incarnation)

    by_slot: dict[int, list[Pod]] = {slot: [] for slot in known}
    for pod in pods:
        by_slot.setdefault(pod.slot, []).append(pod)
    return {
        slot: _seat(
            run_uid,
            slot,
            sorted(found, key=lambda pod: pod.incarnation),
            joined.get(slot, -1),
            known.get(slot, -1),
        )
        for slot, found in sorted(by_slot.items())
    }


def _seat(run_uid: str, slot: int, pods: Sequence[Pod], joined: int, known: int) -> Seat:
    ours = [pod for pod in pods if pod.run_uid == run_uid]
    standing = [pod for pod in ours if not pod.terminating]
    return Seat(
        slot=slot,
        current=standing[-1] if standing else None,
        earlier=tuple(standing[:-1]),
        terminating=tuple(pod for pod in ours if pod.terminating),
        foreign=tuple(pod for pod in pods if pod.run_uid != run_uid),
        highest=max([known, *(pod.incarnation for pod in pods)]),
        joined=joined,
    )
