"""One test cluster a machine: who has it.

The lock is held by a process that lives as long as the cluster (the relay inherits it), so it is free again when
that process is gone, however it went. The text in the file is for people: it says who holds it.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from tests.cluster.harness import layout
from tests.cluster.harness.errors import HarnessError
from tools import cache

HOLD = Path("/run/lock/trainingrun-cluster.lock")
COMMAND = Path("/run/lock/trainingrun-cluster.command.lock")


@dataclass(frozen=True)
class Holder:
    state: str
    checkout: str
    pid: int
    since: str

    @property
    def is_ours(self) -> bool:
        return self.checkout == str(layout.CHECKOUT)

    def __str__(self) -> str:
        return f"checkout {self.checkout}, state folder {self.state}, since {self.since}"


def holder() -> Holder | None:
    """Who has the cluster now; None when nobody does."""
    if not HOLD.exists():
        return None
    with HOLD.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return last_holder()
    return None


def last_holder() -> Holder | None:
    """Who had the cluster last, whether or not it still runs."""
    try:
        return Holder(**json.loads(HOLD.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def hold(state: Path) -> TextIO:
    """Takes the machine. The file stays locked while any process has it open. Raises HarnessError when taken."""
    HOLD.parent.mkdir(parents=True, exist_ok=True)
    lock = HOLD.open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise refusal(last_holder()) from None
    me = Holder(str(state), str(layout.CHECKOUT), os.getpid(), time.strftime("%Y-%m-%d %H:%M:%S"))
    lock.seek(0)
    lock.truncate()
    lock.write(json.dumps(asdict(me)))
    lock.flush()
    return lock


def refusal(other: Holder | None) -> HarnessError:
    return HarnessError(
        f"another test cluster runs on this machine ({other or 'holder unknown'}), and there can be only one",
        "end it with: python -m tests.cluster.harness down --force",
    )


@contextmanager
def command() -> Iterator[None]:
    """One `up` or `down` at a time; the second waits."""
    COMMAND.parent.mkdir(parents=True, exist_ok=True)
    with COMMAND.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            cache.say("waiting for another up or down to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
