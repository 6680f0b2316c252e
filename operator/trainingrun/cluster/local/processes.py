"""Processes by what they carry: the exact way to find and end everything that belongs to a pod or a node.

A process belongs to a pod when its environment holds the pod's uid. Children inherit it, whatever sessions
or process groups they make, so this finds the ranks of an agent too. Signals go through a pidfd, so a pid
that was used again is never hit. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG = 1
TRACKER_SECONDS = 2.0  # what a resource tracker gets, after the last process that it works for
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Process:
    """A pid and when it started (clock ticks since boot): together they name one process for ever."""

    pid: int
    start_ticks: int


def find(pid: int) -> Process | None:
    """The live process of that pid; None when there is none or it is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else Process(pid, int(fields[19]))


def alive(process: Process) -> bool:
    return find(process.pid) == process


def environment(pid: int) -> dict[str, str]:
    """The environment that the process was started with; empty when it is gone or not ours to read."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    pairs = (item.partition(b"=") for item in data.split(b"\0") if b"=" in item)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


def carrying(variables: Mapping[str, str]) -> list[Process]:
    """All live processes, except this one, that have these environment variables with these values."""
    wanted = [os.fsencode(f"{key}={value}") for key, value in variables.items()]
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            items = Path(f"/proc/{entry.name}/environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if all(item in items for item in wanted) and (process := find(int(entry.name))):
            found.append(process)
    return found


def send(process: Process, number: signal.Signals) -> bool:
    """Send a signal to exactly that process; False when it is gone."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not alive(process):
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)


def kill_carrying(variables: Mapping[str, str], timeout_seconds: float = 5.0) -> bool:
    """SIGKILL all of them until none is left, also what they fork meanwhile. False: some would not die.

    Python's resource trackers are left to end by themselves, which they do once the others are dead: they
    remove the named semaphores that those leave behind.
    """
    deadline = time.monotonic() + timeout_seconds
    patience = time.monotonic() + TRACKER_SECONDS
    while found := carrying(variables):
        others = [process for process in found if not _is_tracker(process)]
        if others:
            patience = time.monotonic() + TRACKER_SECONDS
        now = time.monotonic()
        for process in others if now < patience else found:
            send(process, signal.SIGKILL)
        if now > deadline:
            return False
        time.sleep(0.005)
    return True


def _is_tracker(process: Process) -> bool:
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def die_with_parent(parent: int) -> None:
    """Ask the kernel to SIGKILL this process when its parent's thread ends; exits when it has already."""
    if _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def before_exec() -> Callable[[], None]:
    """A `preexec_fn` that ties the child's life to this process. For parents that have one thread."""
    parent = os.getpid()
    return lambda: die_with_parent(parent)


def shell_code(returncode: int) -> int:
    """An exit code as the shell has it: 137 for a process that SIGKILL ended."""
    return returncode if returncode >= 0 else 128 - returncode
