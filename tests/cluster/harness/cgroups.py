"""The cgroup folders of the nodes. Every process of a node's pods is in them, and nothing else is."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.harness import layout

CPU_WEIGHTS = {"cpu.shares": "16384", "cpu.weight": "1600"}  # 16 times that of a process
CONTROLLERS = ("cpuset", "cpu", "memory", "pids")


def hierarchies() -> list[Path]:
    """The mounted hierarchies: several with version 1 of cgroups, one with version 2."""
    if (layout.CGROUPS / "cgroup.controllers").exists():
        return [layout.CGROUPS]
    return [entry for entry in sorted(layout.CGROUPS.iterdir()) if (entry / "tasks").exists()]


def make(name: str) -> None:
    """A folder in every hierarchy, usable: a new cpuset of version 1 allows no CPU until it is told which."""
    for hierarchy in hierarchies():
        folder = hierarchy / name
        folder.mkdir(exist_ok=True)
        if (hierarchy / "cgroup.subtree_control").exists():
            for parent in (hierarchy, folder):
                (parent / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in CONTROLLERS))
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (hierarchy / "tasks").exists() and (folder / setting).exists():
                (folder / setting).write_text((hierarchy / setting).read_text())
        # A node stands for a machine. Beside daemons and tests it must not count as one process among many.
        for setting, weight in CPU_WEIGHTS.items():
            if (folder / setting).exists():
                (folder / setting).write_text(weight)


def ours() -> list[Path]:
    """Every folder of a node that exists, in every hierarchy."""
    return sorted(
        folder
        for hierarchy in hierarchies()
        for folder in hierarchy.glob(f"{layout.PREFIX}*")
        if folder.is_dir()
    )


def pids(name: str) -> set[int]:
    """All processes in the folder `name` and below it, in any hierarchy."""
    found: set[int] = set()
    for hierarchy in hierarchies():
        for folder in _tree(hierarchy / name):
            try:
                found.update(int(line) for line in (folder / "cgroup.procs").read_text().split())
            except OSError:  # removed meanwhile, or a threaded one
                continue
    return found - {0}


def remove(name: str, timeout_seconds: float = 5.0) -> None:
    """Removes the folders, once their processes are gone. What stays is found by `ours`."""
    deadline = time.monotonic() + timeout_seconds
    for hierarchy in hierarchies():
        while (hierarchy / name).exists():
            for folder in sorted(_tree(hierarchy / name), reverse=True):
                try:
                    folder.rmdir()
                except OSError:  # still busy
                    break
            if time.monotonic() > deadline:
                break
            if (hierarchy / name).exists():
                time.sleep(0.05)


def _tree(root: Path) -> Iterator[Path]:
    for folder, _, _ in os.walk(root):
        yield Path(folder)
