"""Daemons that outlive the command which starts them, and what the kernel says about processes.

Every daemon is recorded with its start time, so a number that the kernel has given to another process meanwhile is
never signalled. The harness ends only what it finds this way or in its own cgroups; never by a name.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.harness.errors import HarnessError
from tools import cache

PROC = Path("/proc")


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None when it is gone or only waits to be reaped."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def command_line(pid: int) -> list[str]:
    return [word for word in _read(pid, "cmdline") if word]


def environment(pid: int) -> dict[str, str]:
    """The environment the process was started with."""
    pairs = (entry.partition("=") for entry in _read(pid, "environ") if "=" in entry)
    return {name: value for name, _, value in pairs}


def _read(pid: int, name: str) -> list[str]:
    try:
        data = (PROC / str(pid) / name).read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return data.decode(errors="replace").split("\0")


def every_pid() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def network_namespace(pid: int) -> int | None:
    """The number of the process's network namespace."""
    try:
        return (PROC / str(pid) / "ns/net").stat().st_ino
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        send(pid, signal.SIGKILL)


def wait_gone(pids: Sequence[int], timeout_seconds: float) -> list[int]:
    """Those that are still there at the end of the time."""
    deadline = time.monotonic() + timeout_seconds
    left = [pid for pid in pids if start_time(pid) is not None]
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [pid for pid in left if start_time(pid) is not None]
    return left


@dataclass(frozen=True)
class Daemon:
    name: str
    pid: int
    started: int

    @property
    def alive(self) -> bool:
        return start_time(self.pid) == self.started


class Daemons:
    """The recorded daemons of one cluster: a file each in `folder`, its output in `logs`."""

    def __init__(self, folder: Path, logs: Path) -> None:
        self._folder, self._logs = folder, logs

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        namespace: Path | None = None,
        keep: Sequence[int] = (),
    ) -> Daemon:
        """Starts it in a network namespace (default: the host's); file descriptors `keep` stay open in it."""
        words = [str(word) for word in command]
        if namespace is not None:
            # Not `ip netns exec`: that mounts a new /sys, in which a kubelet finds no cgroups.
            words = ["nsenter", f"--net={namespace}", *words]
        self._folder.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        with (self._logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=keep,
                cwd="/",
            )
        started = start_time(process.pid)
        if started is None:
            raise HarnessError(f"{name} ended at once: {self.log_end(name)}")
        _children.append(process)
        record = {"pid": process.pid, "started": started}
        with cache.publishing(self._folder / name) as draft:
            draft.write_text(json.dumps(record))
        return Daemon(name, process.pid, started)

    def get(self, name: str) -> Daemon | None:
        try:
            record = json.loads((self._folder / name).read_text())
        except FileNotFoundError:
            return None
        return Daemon(name, record["pid"], record["started"])

    def all(self) -> list[Daemon]:
        if not self._folder.is_dir():
            return []
        names = sorted(entry.name for entry in self._folder.iterdir() if not entry.name.startswith("."))
        return [daemon for name in names if (daemon := self.get(name))]

    def send_signal(self, name: str, number: signal.Signals) -> None:
        """Raises HarnessError when it does not run."""
        daemon = self.get(name)
        if daemon is None or not daemon.alive:
            raise HarnessError(f"{name} does not run")
        send(daemon.pid, number)

    def stop(
        self, names: Sequence[str], number: signal.Signals = signal.SIGTERM, seconds: float = 5.0
    ) -> None:
        """Ends them together, in the hard way when one does not go within `seconds`, and forgets them."""
        alive = [daemon for name in names if (daemon := self.get(name)) and daemon.alive]
        for daemon in alive:
            send(daemon.pid, number)
            send(daemon.pid, signal.SIGCONT)
        left = wait_gone([daemon.pid for daemon in alive], seconds)
        kill(left)
        wait_gone(left, 5.0)
        for child in _children:
            child.poll()
        for name in names:
            (self._folder / name).unlink(missing_ok=True)

    def log_end(self, name: str, size: int = 1500) -> str:
        path = self._logs / f"{name}.log"
        return path.read_text(errors="replace")[-size:] if path.exists() else ""


# Daemons started by this process: polled when they are stopped, so that none stays as a zombie of a long test run.
_children: list[subprocess.Popen[bytes]] = []
