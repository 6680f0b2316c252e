"""Pods as folders: one folder a pod, made and removed in one rename.

Who writes what: the controller makes the folder and asks for deletion, exactly one node binds it
(create-only), and only that node writes the pod's status. Nothing here judges; `adapter` turns these facts
into the port's Pod.
"""

from __future__ import annotations

import shutil
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainingrun.cluster.local import files
from trainingrun.cluster.local.layout import Layout
from trainingrun.ports import Conflict, PodPhase, PodTemplate
from trainingrun.protocol import wire
from trainingrun.protocol.messages import Termination
from trainingrun.protocol.names import pod_name

NOBODY = ""  # the node of a pod that was deleted before any node took it


@dataclass(frozen=True)
class PodFile:
    """`pod.json`: what the controller asked for."""

    name: str
    uid: str
    run: str
    run_uid: str
    slot: int
    incarnation: int
    revision: str
    resources: dict[str, str]
    processes: int
    created_at: float


@dataclass(frozen=True)
class Binding:
    """`bind.json`: the node, which life of it, and where it keeps the pod's memory-backed files."""

    node: str
    instance: str
    snapshot_dir: str


@dataclass(frozen=True)
class PodStatus:
    """`status.json`, written by the node."""

    phase: PodPhase = PodPhase.PENDING
    ready: bool = False
    restarts: int = 0
    reason: str = ""
    message: str = ""
    crash_loop_since: float = 0.0  # seconds since 1970; 0: not in back-off
    termination: Termination | None = None
    pid: int = 0  # of the agent
    start_ticks: int = 0


@dataclass(frozen=True)
class StoredPod:
    folder: Path
    pod: PodFile
    binding: Binding | None
    status: PodStatus | None
    deleting: bool


class PodStore:
    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def create(self, template: PodTemplate, now: float) -> None:
        """Raises Conflict when the name is taken, or the run is gone."""
        name = pod_name(template.run, template.slot, template.incarnation)
        pod = PodFile(
            name=name,
            uid=str(uuid.uuid4()),
            run=template.run,
            run_uid=template.run_uid,
            slot=template.slot,
            incarnation=template.incarnation,
            revision=template.revision,
            resources=dict(template.resources),
            processes=template.processes,
            created_at=now,
        )
        folder = self.layout.pods(template.run)
        try:
            folder.mkdir(exist_ok=True)
            files.create_folder(folder / name, {"pod.json": wire.to_json(pod)})
        except FileNotFoundError:
            raise Conflict(f"{name}: run {template.run} is gone") from None

    def of_run(self, run: str) -> list[StoredPod]:
        folder = self.layout.pods(run)
        found = (self._load(folder / name) for name in files.names(folder))
        return [pod for pod in found if pod is not None]

    def get(self, run: str, name: str) -> StoredPod | None:
        return self._load(self.layout.pods(run) / name)

    def bind(self, stored: StoredPod, binding: Binding) -> bool:
        """Take the pod for a node; False when another was first or the pod is gone."""
        try:
            files.create_only(stored.folder / "bind.json", wire.to_json(binding))
        except (Conflict, FileNotFoundError):
            return False
        return True

    def write_status(self, folder: Path, status: PodStatus) -> bool:
        """By the pod's node only; False when the pod is gone."""
        try:
            files.replace(folder / "status.json", wire.to_json(status))
        except FileNotFoundError:
            return False
        return True

    def delete(self, stored: StoredPod) -> None:
        """Ask for deletion: its node stops it and removes it; one that no node took is removed here."""
        if self.bind(stored, Binding(node=NOBODY, instance="", snapshot_dir="")):
            self.remove(stored)
            return
        with suppress(FileNotFoundError):
            files.replace(stored.folder / "deleting", stored.pod.uid)  # of that very pod, not of a later one

    def remove(self, stored: StoredPod) -> None:
        """Remove a pod that has no process any more, its memory-backed files first."""
        if stored.binding is not None and stored.binding.snapshot_dir:
            drop_snapshots(Path(stored.binding.snapshot_dir))
        files.remove_folder(stored.folder)

    def _load(self, folder: Path) -> StoredPod | None:
        data = files.read(folder / "pod.json")
        if data is None:
            return None
        binding, status = files.read(folder / "bind.json"), files.read(folder / "status.json")
        pod = wire.from_json(PodFile, data)
        return StoredPod(
            folder=folder,
            pod=pod,
            binding=None if binding is None else wire.from_json(Binding, binding),
            status=None if status is None else wire.from_json(PodStatus, status),
            deleting=files.read(folder / "deleting") == pod.uid,
        )


def snapshot_dir(memory_folder: str, run_uid: str, pod: str) -> Path:
    return Path(memory_folder) / f"trainingrun-{run_uid[:8]}" / pod


def drop_snapshots(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # other pods of the run still have theirs
        folder.parent.rmdir()
