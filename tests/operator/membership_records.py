"""Plans, a clock that is moved by hand, and records in memory: what membership stands on, for its tests."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainingrun.ports import Conflict, Refused, Unavailable
from trainingrun.protocol.messages import DurableCheckpoint
from trainingrun.protocol.records import Epoch, Revision, Rung

RUN, UID, WALL = "story", "uid-1", 1_800_000_000.0


def a_rung(nodes: int, useful: bool = True) -> Rung:
    """Two processes a node; the state is sharded inside a node and copied on every node."""
    return Rung(nodes, 2, 1, nodes, 2, 1, 2, 1, 0, nodes, useful, "" if useful else "no whole replica more")


def a_revision(sizes: Sequence[int] = (1, 2), useless: Sequence[int] = (), hold: float = 2.0) -> Revision:
    rungs = tuple(a_rung(size, size not in useless) for size in sizes)
    return Revision(f"{RUN}-r1", RUN, UID, 1, {"scale": {"growHoldSeconds": hold}}, rungs, {}, "test")


class FakeClock:
    def __init__(self) -> None:
        self.at = 100.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return WALL + self.at


@dataclass
class MemoryRecords:
    """A `Records` in memory, with faults on demand."""

    revision_list: list[Revision] = field(default_factory=lambda: [a_revision()])
    made: dict[str, Epoch] = field(default_factory=dict)
    exists: bool = True
    saved: DurableCheckpoint | None = None  # what the run's status says
    unavailable: bool = False
    refusal: str = ""  # why no record may be made
    tries: int = 0  # to make one
    lose_replies: int = 0  # so many records are created without the caller learning of it
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run_exists(self, run_uid: str) -> str | None:
        self._check()
        return RUN if self.exists and run_uid == UID else None

    def saved_checkpoint(self, run_uid: str) -> DurableCheckpoint | None:
        self._check()
        return self.saved

    def revisions(self, run_uid: str) -> Sequence[Revision]:
        self._check()
        return list(self.revision_list)

    def epochs(self, run_uid: str, after: int = 0) -> Sequence[Epoch]:
        self._check()
        return sorted((e for e in self.made.values() if e.epoch > after), key=lambda e: e.epoch)

    def create(self, record: Revision | Epoch) -> None:
        self._check()
        assert isinstance(record, Epoch)
        self.tries += 1
        if self.refusal:
            raise Refused("Forbidden", self.refusal)
        with self.lock:
            if record.name in self.made:
                raise Conflict(record.name)
            self.made[record.name] = record
        if self.lose_replies:
            self.lose_replies -= 1
            raise Unavailable("the reply was lost")

    @property
    def newest(self) -> Epoch:
        return self.epochs(UID)[-1]

    def _check(self) -> None:
        if self.unavailable:
            raise Unavailable("records are away")
