"""The local adapter: ports.ControlPort over a state directory. It translates, it decides nothing.

Called by the controller and by the membership service (Records only). Like Kubernetes's pod garbage
collection it finishes what a dead node cannot: a pod of a node's former life is reported Failed with reason
NodeLost once no process carries its uid, and is removed when it is to be deleted.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainingrun.api.quantity import parse_quantity
from trainingrun.cluster.local import files, processes
from trainingrun.cluster.local.nodes import NodeStore
from trainingrun.cluster.local.podstore import NOBODY, PodStatus, PodStore, StoredPod, drop_snapshots
from trainingrun.cluster.local.settings import LocalSettings
from trainingrun.cluster.local.store import Store, clock
from trainingrun.ports import Claim, EventRecord, Node, Pod, PodPhase, PodTemplate, RunObject
from trainingrun.protocol import wire
from trainingrun.protocol.messages import DurableCheckpoint, RunView
from trainingrun.protocol.names import ENV_POD_UID
from trainingrun.protocol.records import Epoch, Revision

LOOK_SECONDS = 0.05  # how often wait_for_change looks
TERMINAL = (PodPhase.SUCCEEDED, PodPhase.FAILED)


class LocalPort:
    """Implements ports.ControlPort (and so ports.Records)."""

    def __init__(
        self, root: Path, settings: LocalSettings | None = None, now: Callable[[], float] = clock
    ) -> None:
        self.settings = settings or LocalSettings()
        self.store = Store(root)
        self.layout = self.store.layout
        self.pod_store = PodStore(self.layout)
        self.node_store = NodeStore(self.layout)
        self._now = now
        self._seen: object = None

    # records

    def run_exists(self, run_uid: str) -> str | None:
        return self.store.name_of(run_uid)

    def saved_checkpoint(self, run_uid: str) -> DurableCheckpoint | None:
        name = self._any_name_of(run_uid)
        run = self.store.run(name) if name is not None else None
        saved = ((run.status if run is not None else {}).get("checkpoint") or {}).get("durable")
        return None if saved is None else DurableCheckpoint(saved["manifest"], saved["epoch"], saved["step"])

    def revisions(self, run_uid: str) -> Sequence[Revision]:
        name = self._any_name_of(run_uid)
        return [] if name is None else self.store.revisions(name, run_uid)

    def epochs(self, run_uid: str, after: int = 0) -> Sequence[Epoch]:
        name = self._any_name_of(run_uid)
        return [] if name is None else self.store.epochs(name, run_uid, after)

    def create(self, record: Revision | Epoch) -> None:
        self.store.create_record(record)

    def _any_name_of(self, run_uid: str) -> str | None:
        runs = (self.store.run(name) for name in self.store.run_names())
        return next((run.name for run in runs if run is not None and run.uid == run_uid), None)

    # runs

    def run_keys(self) -> Sequence[str]:
        return self.store.run_names()

    def get_run(self, name: str) -> RunObject | None:
        run = self.store.run(name)
        if run is not None and run.deleting and not self.pods(name):
            self.store.remove_run(name)  # its pods are gone: nothing holds it any more
            return None
        return run

    def delete_run(self, name: str) -> None:
        """Delete the run and, as owner references would, its pods. It is gone when the last of them is."""
        self.store.mark_deleting(name)
        for stored in self.pod_store.of_run(name):
            self.pod_store.delete(stored)

    def write_status(self, name: str, status: Mapping[str, Any], resource_version: str) -> None:
        self.store.write_status(name, status, resource_version)

    def emit(self, run: str, event: EventRecord) -> None:
        self.store.emit(run, event)

    # pods and nodes

    def pods(self, run: str) -> Sequence[Pod]:
        return [pod for stored in self.pod_store.of_run(run) if (pod := self._translate(stored)) is not None]

    def nodes(self) -> Sequence[Node]:
        found = []
        for name in self.node_store.names():
            node = self.node_store.get(name)
            if node is not None:
                found.append(Node(name=name, ready=self.node_store.lives(name), capacity=node.capacity))
        return found

    def claims(self, key: str, names: Collection[str]) -> Mapping[str, Claim | None]:
        return dict.fromkeys(names)  # a machine has no claims

    def pod_template(self, run: RunObject, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}  # a process needs none

    def create_pod(self, template: PodTemplate) -> None:
        self.pod_store.create(template, self._now())

    def delete_pod(self, key: str, name: str, uid: str) -> None:
        stored = self.pod_store.get(key, name)
        if stored is not None and stored.pod.uid == uid:
            self.pod_store.delete(stored)

    def _translate(self, stored: StoredPod) -> Pod | None:
        """The port's view of a pod; None for one that is gone by now."""
        if stored.binding is None:
            return self._pod(stored, PodStatus(), node="")
        if stored.binding.node == NOBODY:
            self.pod_store.remove(stored)  # somebody died between the two steps of its deletion
            return None
        node, instance = stored.binding.node, stored.binding.instance
        status = stored.status or PodStatus()
        if self.node_store.runs_instance(node, instance):
            return self._pod(stored, status, node)
        if not processes.kill_carrying({ENV_POD_UID: stored.pod.uid}):
            return self._pod(stored, status, node)  # not proven dead, so not reported dead
        if stored.deleting:
            self.pod_store.remove(stored)
            return None
        drop_snapshots(Path(stored.binding.snapshot_dir))  # the memory of a node dies with it
        if status.phase in TERMINAL:
            return self._pod(stored, status, node)
        lost = PodStatus(
            phase=PodPhase.FAILED,
            restarts=status.restarts,
            reason="NodeLost",
            message=f"node {node} is gone, and every process of the pod with it",
            termination=status.termination,
        )
        return self._pod(stored, lost, node)

    def _pod(self, stored: StoredPod, status: PodStatus, node: str) -> Pod:
        looping = self._now() - status.crash_loop_since if status.crash_loop_since else 0.0
        return Pod(
            name=stored.pod.name,
            uid=stored.pod.uid,
            run_uid=stored.pod.run_uid,
            slot=stored.pod.slot,
            incarnation=stored.pod.incarnation,
            revision=stored.pod.revision,
            phase=status.phase,
            node=node,
            ready=status.ready,
            terminating=stored.deleting,
            restarts=status.restarts,
            reason=status.reason or ("" if node else self._why_pending(stored)),
            message=status.message,
            crash_looping_seconds=max(0.0, looping),
            termination=status.termination,
            created_at=stored.pod.created_at,
        )

    def _why_pending(self, stored: StoredPod) -> str:
        """Unschedulable when no node is free for it; empty when a node is about to take it."""
        bound = [pod.binding for run in self.run_keys() for pod in self.pod_store.of_run(run) if pod.binding]
        taken = {
            binding.node for binding in bound if self.node_store.runs_instance(binding.node, binding.instance)
        }
        free = [node for node in self.nodes() if node.ready and node.name not in taken]
        return "" if any(fits(stored.pod.resources, node.capacity) for node in free) else "Unschedulable"

    # membership

    def membership(self, run_uid: str) -> RunView | None:
        where = files.read(self.layout.membership)
        if where is None:
            return None
        url = f"http://{where['host']}:{where['port']}/v1/runs/{run_uid}"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy
        try:
            with opener.open(url, timeout=self.settings.membership_timeout_seconds) as answer:
                return wire.from_json(RunView, json.load(answer))
        except (
            OSError,
            http.client.HTTPException,
            ValueError,
        ):  # unreachable, too slow, 404, or not a RunView
            return None

    # waiting

    def wait_for_change(self, timeout_seconds: float) -> Collection[str] | None:
        deadline = time.monotonic() + timeout_seconds
        while True:
            seen = self._fingerprint()
            if seen != self._seen:  # since the last call returned, so that nothing in between is missed
                self._seen = seen
                return None
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return ()
            time.sleep(min(LOOK_SECONDS, remaining))

    def _fingerprint(self) -> object:
        """Changes when a run, record, pod or node does; not when the controller writes status or events."""
        marks: list[object] = [(node, self.node_store.lives(node)) for node in self.node_store.names()]
        marks += [_stamp(self.layout.nodes / node / "node.json") for node in self.node_store.names()]
        for run in self.store.run_names():
            folder = self.layout.run(run)
            marks += [
                run,
                _stamp(folder / "run.json"),
                _stamp(folder / "deleting"),
                _stamp(folder / "records"),
            ]
            pods = self.layout.pods(run)
            marks += [
                (pod, _stamp(pods / pod), _stamp(pods / pod / "status.json")) for pod in files.names(pods)
            ]
        return marks


def fits(wanted: Mapping[str, str], capacity: Mapping[str, str]) -> bool:
    """Whether a node has the devices that a pod asks for. Cpu and memory are the machine's, shared by all."""
    devices = {name: count for name, count in wanted.items() if name not in ("cpu", "memory")}
    had = {name: parse_quantity(capacity.get(name, "0")) for name in devices}
    return all(parse_quantity(count) <= had[name] for name, count in devices.items())


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_ino, found.st_mtime_ns)
