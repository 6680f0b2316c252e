"""Nodes as locks: a node is ready exactly as long as the kernel says that its process holds its lock.

Each life of a node has an id of its own (`instance`), so that a pod of a former life is never taken for a
present one.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainingrun.cluster.local import files, processes
from trainingrun.cluster.local.layout import Layout
from trainingrun.protocol import wire

ENV_STATE = "TRAININGRUN_LOCAL_STATE"  # every process of a local cluster carries its state directory
ENV_NODE = "TRAININGRUN_LOCAL_NODE"  # and every process of a node the name of its node
ENV_PROGRAM = "TRAININGRUN_LOCAL_PROGRAM"  # membership and controller carry which of them they are
LOCK_PATIENCE_SECONDS = 5.0


class NodeRuns(Exception):
    """A node of that name runs already."""


@dataclass(frozen=True)
class NodeFile:
    """`node.json`, written by the node once its former life is cleaned up."""

    name: str
    instance: str
    pid: int
    capacity: dict[str, str] = field(default_factory=dict)


class NodeStore:
    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def names(self) -> list[str]:
        return files.names(self.layout.nodes)

    def enter(self, name: str) -> str:
        """Take the node's lock for the life of this process and return the id of this life."""
        folder = self._folder(name)
        folder.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + LOCK_PATIENCE_SECONDS
        while files.hold(folder / "lock") is None:  # a short hold is somebody who looks whether it is free
            if time.monotonic() > deadline:
                raise NodeRuns(
                    f"--name {name}: a node of that name runs in {self.layout.root}; choose another name"
                )
            time.sleep(0.02)
        return uuid.uuid4().hex

    def publish(self, name: str, instance: str, pid: int, capacity: Mapping[str, str]) -> None:
        node = NodeFile(name=name, instance=instance, pid=pid, capacity=dict(capacity))
        files.replace(self._folder(name) / "node.json", wire.to_json(node))

    def get(self, name: str) -> NodeFile | None:
        data = files.read(self._folder(name) / "node.json")
        return None if data is None else wire.from_json(NodeFile, data)

    def lives(self, name: str) -> bool:
        return files.is_held(self._folder(name) / "lock")

    def runs_instance(self, name: str, instance: str) -> bool:
        """Whether that very life of the node goes on."""
        node = self.get(name)
        return node is not None and node.instance == instance and self.lives(name)

    def kill(self, name: str) -> bool:
        """What a power cut does: SIGKILL to the node and to everything on it, at once."""
        return processes.kill_carrying(self.marks(name))

    def marks(self, name: str) -> dict[str, str]:
        return {ENV_STATE: str(self.layout.root), ENV_NODE: name}

    def _folder(self, name: str) -> Path:
        return self.layout.nodes / name
