"""The line as processes on this machine, in a state directory of its own that is removed at the end."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.scenarios.line import Line, Moment

from trainingrun.cluster.local.cluster import CONTROLLER, MEMBERSHIP, LocalCluster
from trainingrun.cluster.local.container import tail
from trainingrun.cluster.local.processes import Process
from trainingrun.cluster.local.settings import LocalSettings
from trainingrun.ports import EventRecord, Node
from trainingrun.protocol.records import Revision

ENV_TRAINER_PYTHON = "TRAININGRUN_TRAINER_PYTHON"


class LocalLine(Line):
    """The line as processes on this machine, in a state directory of its own that is removed at the end.

    `state`: use this directory and keep it. `settings` and `membership_settings` are of the local cluster
    and of the membership service.
    """

    def __init__(
        self,
        nodes: int = 2,
        settings: LocalSettings | None = None,
        membership_settings: Mapping[str, float] | None = None,
        state: Path | None = None,
    ) -> None:
        trainer_python = os.environ.get(ENV_TRAINER_PYTHON, "")
        if not trainer_python:
            raise RuntimeError(f"{ENV_TRAINER_PYTHON} is not set; run the scenarios by `make test-scenarios`")
        self._kept = state is not None
        self.state = state or Path(tempfile.mkdtemp(prefix="trainingrun-scenario-"))
        self._nodes = [f"node-{number}" for number in range(nodes)]
        self.cluster = LocalCluster(
            self.state / "state", trainer_python, sys.executable, settings, membership_settings
        )
        self._run = ""
        self._uid = ""

    def __enter__(self) -> Self:
        try:
            self.cluster.start_membership()
            self.cluster.start_controller()
            for node in self._nodes:
                self.cluster.start_node(node)
        except BaseException:
            self.cluster.teardown()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cluster.teardown()
        self._left = self.cluster.leaks()
        if not self._kept and kind is None:  # what a failed test leaves is for people to read
            shutil.rmtree(self.state, ignore_errors=True)

    def apply(self, manifest: Mapping[str, Any]) -> str:
        self._run = manifest["metadata"]["name"]
        self._uid = self.cluster.apply(manifest)
        return self._uid

    def moment(self) -> Moment:
        port = self.cluster.port
        run = port.store.run(self._run)
        return Moment(
            view=port.membership(self._uid),
            status=run.status if run is not None else {},
            pods=port.pods(self._run),
            epochs=port.epochs(self._uid),
        )

    def revisions(self) -> Sequence[Revision]:
        return self.cluster.port.revisions(self._uid)

    def events(self) -> Sequence[EventRecord]:
        return self.cluster.port.store.events(self._run)

    def nodes(self) -> Sequence[Node]:
        return self.cluster.port.nodes()

    def node_of(self, slot: int) -> str:
        node = self.cluster.node_of(self._run, slot)
        if node is None:
            raise LookupError(f"no node holds slot {slot}")
        return node

    def logs(self) -> str:
        root = self.cluster.root
        files = sorted([*root.glob("logs/*.log"), *root.glob("runs/*/logs/*/*.log")])
        return "\n".join(f"--- {file.relative_to(root)}\n{tail(file, 3000)}" for file in files)

    def files(self, pattern: str) -> Sequence[Path]:
        return sorted(self.cluster.root.glob(f"runs/{self._run}/logs/*/{pattern}"))

    def cache_dir(self) -> Path:
        return self.cluster.layout.cache

    def leaks(self) -> Sequence[str]:
        return self._left

    def ranks(self, slot: int) -> Mapping[int, Process]:
        return self.cluster.ranks(self._run, slot)

    def kill_rank(self, slot: int, local_rank: int) -> None:
        self.cluster.kill_rank(self._run, slot, local_rank)

    def kill_agent(self, slot: int) -> None:
        self.cluster.kill_agent(self._run, slot)

    def kill_node(self, node: str) -> None:
        self.cluster.kill_node(node)

    def start_node(self, node: str) -> None:
        self.cluster.start_node(node)

    def stop_membership(self) -> None:
        self.cluster.pause(MEMBERSHIP)

    def continue_membership(self) -> None:
        self.cluster.resume(MEMBERSHIP)

    def kill_membership(self) -> None:
        self.cluster.kill(MEMBERSHIP)

    def start_membership(self) -> None:
        self.cluster.start_membership()

    def kill_controller(self) -> None:
        self.cluster.kill(CONTROLLER)

    def start_controller(self) -> None:
        self.cluster.start_controller()
