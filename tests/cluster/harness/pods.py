"""A pod's processes as the host sees them: to look at, and to kill."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.harness import cgroups, processes
from tests.cluster.harness.api import Api
from tests.cluster.harness.errors import HarnessError


@dataclass(frozen=True)
class PodProcess:
    """A process of a pod. `pid` is the host's number, `inner_pid` that inside the container."""

    pid: int
    inner_pid: int
    container: str
    command: tuple[str, ...]
    environment: dict[str, str]


def processes_of(container_id: str) -> list[int]:
    """Host pids in the container's cgroup, ascending. Every hierarchy has the same; the first that has it counts."""
    for folder in cgroups.ours():
        for match in folder.glob(f"**/{container_id}"):
            try:
                return sorted(int(line) for line in (match / "cgroup.procs").read_text().split())
            except OSError:  # the container has just ended
                continue
    return []


def _read(pid: int, container: str) -> PodProcess | None:
    command = tuple(processes.command_line(pid))
    try:
        status = (Path("/proc") / str(pid) / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    inner = re.search(r"^NSpid:.*?(\d+)$", status, re.MULTILINE)
    if not command or not inner:  # gone, or a zombie
        return None
    return PodProcess(pid, int(inner[1]), container, command, processes.environment(pid))


def find(api: Api, namespace: str, pod: str) -> list[PodProcess]:
    """Processes of the pod's running containers. Raises HarnessError when there is no such pod."""
    found = api.get(f"/api/v1/namespaces/{namespace}/pods/{pod}")
    here: list[PodProcess] = []
    for status in found["status"].get("containerStatuses", ()):
        identifier = status.get("containerID", "").rpartition("/")[2]
        if identifier and "running" in status["state"]:
            read = (_read(pid, status["name"]) for pid in processes_of(identifier))
            here += [each for each in read if each]
    return here


def select(candidates: Sequence[PodProcess], selector: str) -> list[PodProcess]:
    """Those that match: `pid=1` (inside), `env=NAME=VALUE`, `all`, or a regular expression over the command line.

    Raises HarnessError when none does, with what there is.
    """
    if selector == "all":
        chosen = list(candidates)
    elif selector.startswith("pid="):
        chosen = [each for each in candidates if str(each.inner_pid) == selector[4:]]
    elif selector.startswith("env="):
        name, _, value = selector[4:].partition("=")
        chosen = [each for each in candidates if each.environment.get(name) == value]
    else:
        chosen = [each for each in candidates if re.search(selector, " ".join(each.command))]
    if not chosen:
        there = "; ".join(f"pid={each.inner_pid} {' '.join(each.command)[:80]}" for each in candidates)
        raise HarnessError(f"no process of the pod matches {selector!r}", f"its processes: {there or 'none'}")
    return chosen
