"""Whether the watch still tells what happens: every object of a LIST must be heard of, in that version or a newer one.

A watch may stop silently: its connection is half open, or the library that reads it hangs. LISTs are the truth; this
only compares. Time while no LIST succeeds does not count: then the API server is away, and the watch is not to blame.
It decides nothing: the health endpoints ask it. Thread-safe.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from trainingrun.cluster.kubernetes.objects import Object, metadata, name_of, uid_of

GAP_SECONDS = 60.0  # after so long without a LIST, what was missing before gets a new chance
KEEP_SECONDS = 60.0  # an object heard of longer ago than this, and not in a complete LIST, is gone


class Watched(StrEnum):
    RUNS = "trainingruns"
    PODS = "pods"
    NODES = "nodes"


@dataclass
class _Heard:
    version: int
    at: float


@dataclass
class _Missed:
    name: str
    version: int  # that a LIST showed and no event did
    since: float


@dataclass
class _Resource:
    heard: dict[str, _Heard] = field(default_factory=dict)  # by uid
    missed: dict[str, _Missed] = field(default_factory=dict)  # by uid
    listed_at: float = float("-inf")


@dataclass(frozen=True)
class Stall:
    """A resource whose watch is behind the LISTs by `seconds`."""

    resource: Watched
    name: str  # of the object that shows it
    seconds: float

    def __str__(self) -> str:
        return f"watch of {self.resource.value} is {self.seconds:.0f} s behind: no event of {self.name}"


class Freshness:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._resources = {which: _Resource() for which in Watched}

    def heard(self, which: Watched, item: Object) -> None:
        """An event of this object arrived; that of its deletion, too."""
        uid, version = uid_of(item), _version(item)
        with self._lock:
            resource = self._resources[which]
            before = resource.heard.get(uid)
            if before is None or before.version <= version:
                resource.heard[uid] = _Heard(version, self._clock())
            missed = resource.missed.get(uid)
            if missed is not None and missed.version <= version:
                del resource.missed[uid]

    def listed(self, which: Watched, items: Sequence[Object], complete: bool = False) -> None:
        """A LIST (or GET) showed these objects; `complete`: there are no others."""
        now = self._clock()
        with self._lock:
            resource = self._resources[which]
            if now - resource.listed_at > GAP_SECONDS:
                for missed in resource.missed.values():
                    missed.since = now
            resource.listed_at = now
            for item in items:
                _compare(resource, item, now)
            if complete:
                _drop_gone(resource, {uid_of(item) for item in items}, now)

    def stalls(self, longer_than_seconds: float) -> list[Stall]:
        """One for each watch that is behind by more than this."""
        found = []
        with self._lock:
            for which, resource in self._resources.items():
                oldest = min(resource.missed.values(), key=lambda missed: missed.since, default=None)
                behind = resource.listed_at - oldest.since if oldest is not None else 0.0
                if oldest is not None and behind > longer_than_seconds:
                    found.append(Stall(which, oldest.name, behind))
        return found


def _compare(resource: _Resource, item: Object, now: float) -> None:
    uid, version = uid_of(item), _version(item)
    heard = resource.heard.get(uid)
    heard_version = heard.version if heard is not None else -1
    missed = resource.missed.get(uid)
    if heard_version >= version:
        resource.missed.pop(uid, None)
    elif missed is None or heard_version >= missed.version:
        resource.missed[uid] = _Missed(name_of(item), version, now)


def _drop_gone(resource: _Resource, present: set[str], now: float) -> None:
    for uid in resource.missed.keys() - present:
        del resource.missed[uid]
    # One that was heard of just now may have been created after the LIST was made.
    old = {uid for uid, heard in resource.heard.items() if now - heard.at > KEEP_SECONDS}
    for uid in old - present:
        del resource.heard[uid]


def _version(item: Object) -> int:
    """Resource versions of API servers are numbers that grow (Kubernetes promises it since 1.35)."""
    text = str(metadata(item).get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0
