"""Real shortage of memory in a pod: the kernel kills one of its processes, and the others live on.

A process of this machine joins the memory control group of the victim's container and takes memory until the limit
is reached and the kernel has killed somebody: the victim, which is made the kernel's first choice. Memory that the
victim shares with processes that live on (ranks are forks) does not come free with it. Then the kernel kills once more,
at once: its second choice is who has taken most, and that is the process that eats, so its end tells nothing.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from trainingrun.cluster.local import processes

_GROUPS, _PROCESSES = Path("/sys/fs/cgroup"), Path("/proc")
_FIRST, _LAST = "1000", "0"
_PATIENCE_SECONDS = 60.0
_GONE_SECONDS = 10.0  # what is killed may take a while to end on a machine that is busy

_EAT = """
import os, sys
from pathlib import Path

group, counter = Path(sys.argv[1]), Path(sys.argv[2])

def kills():
    return [line for line in counter.read_text().splitlines() if line.startswith("oom_kill ")]

before, eaten = kills(), []
Path("/proc/self/oom_score_adj").write_text(sys.argv[3])  # it may have inherited another
(group / "cgroup.procs").write_text(str(os.getpid()))
while kills() == before:
    eaten.append(bytearray(b"x") * (1 << 18))
"""


def kill_for_memory(victim: int) -> None:
    """The kernel kills the process `victim` (its number on this machine), because its container is out of memory."""
    process = processes.find(victim)
    if process is None:
        raise LookupError(f"there is no process {victim}")
    group, counter = _memory_group(victim)
    for pid in (int(line) for line in (group / "cgroup.procs").read_text().split()):
        (_PROCESSES / str(pid) / "oom_score_adj").write_text(_FIRST if pid == victim else _LAST)
    eater = [sys.executable, "-c", _EAT, str(group), str(counter), _LAST]
    ended = subprocess.run(eater, check=False, capture_output=True, text=True, timeout=_PATIENCE_SECONDS)
    deadline = time.monotonic() + _GONE_SECONDS
    while processes.alive(process):
        if time.monotonic() > deadline:
            raise AssertionError(
                f"the kernel killed another than {victim}: {ended.returncode}, {ended.stderr}"
            )
        time.sleep(0.05)


def parent(pid: int) -> int:
    status = (_PROCESSES / str(pid) / "status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:"))


def _memory_group(pid: int) -> tuple[Path, Path]:
    """The process's memory control group and the file with its counter of kills, of either version."""
    for line in (_PROCESSES / str(pid) / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            group = _GROUPS / "memory" / path.lstrip("/")
            return group, group / "memory.oom_control"
        if not controllers and (_GROUPS / "cgroup.controllers").exists():
            group = _GROUPS / path.lstrip("/")
            return group, group / "memory.events"
    raise LookupError(f"process {pid} is in no memory control group")
