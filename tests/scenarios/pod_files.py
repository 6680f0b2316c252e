"""What pods write into their own folders, kept: a pod takes its files along when it goes.

Every new file is opened as soon as it appears, because an open file outlives its name. A thread looks at the pods of a
namespace all the time; what it sees of them is told to a witness. Used by `cluster_line`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from tests.cluster.harness import Cluster

from trainingrun.api.constants import Label
from trainingrun.cluster.kubernetes.api import Api
from trainingrun.ports import Unavailable

LOOK_SECONDS = 0.2
KINDS = ("logs", "cache")  # emptyDirs of a worker pod

PodObject = dict[str, Any]


class PodFiles:
    """Copies are made below `state`/<kind>/<uid of the pod>. `saw` is called with the pods of every look."""

    def __init__(
        self,
        cluster: Cluster,
        api: Api,
        namespace: str,
        state: Path,
        saw: Callable[[Sequence[PodObject]], None],
    ) -> None:
        self._cluster, self._api, self._namespace, self._state = cluster, api, namespace, state
        self._saw = saw
        self._uids: set[str] = set()  # of pods of the namespace, those that are gone included
        self._opened: dict[Path, BinaryIO] = {}  # by where a copy of it goes
        self._stop = threading.Event()
        self._looking = threading.Lock()
        self._thread = threading.Thread(target=self._follow, name="pod-files", daemon=True)

    def start(self) -> None:
        for kind in KINDS:
            (self._state / kind).mkdir(parents=True, exist_ok=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for file in self._opened.values():
            file.close()

    def folder(self, kind: str) -> Path:
        """One folder for each pod, with copies of its files as they are now."""
        self._look()
        with self._looking:
            for copy, file in self._opened.items():
                copy.parent.mkdir(parents=True, exist_ok=True)
                file.seek(0)
                copy.write_bytes(file.read())
        return self._state / kind

    def _follow(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        with self._looking:
            with suppress(Unavailable):
                pods = self._api.list(f"/api/v1/namespaces/{self._namespace}/pods", Label.RUN_UID.value)
                self._saw(pods)
                self._uids |= {pod["metadata"]["uid"] for pod in pods}
            for uid in sorted(self._uids):
                with suppress(FileNotFoundError):  # a folder went while it was walked through
                    for kind, source in self._volumes(uid):
                        self._open_tree(source, self._state / kind / uid)

    def _open_tree(self, source: Path, target: Path) -> None:
        """No link would do instead of an open file: the kubelet's folder is a mount of its own."""
        for path in source.rglob("*"):
            copy = target / path.relative_to(source)
            if copy in self._opened or path.is_symlink() or not path.is_file():
                continue
            with suppress(FileNotFoundError):
                self._opened[copy] = path.open("rb")

    def _volumes(self, uid: str) -> Iterator[tuple[str, Path]]:
        for node in self._cluster.layout.nodes:
            volumes = node.folder / "kubelet" / "pods" / uid / "volumes" / "kubernetes.io~empty-dir"
            for kind in KINDS:
                yield from ((kind, folder) for folder in volumes.glob(f"*{kind}"))
