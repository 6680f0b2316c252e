"""A local node, the stand-in for a kubelet: `python -m trainingrun.cluster.local.node --name node-0 …`.

One process, one thread, one pod at a time. Alive exactly while it holds its lock; everything on it dies
with it. A node that comes back is a new life: it ends what its former life left, then takes pending pods.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trainingrun.cluster.local import processes
from trainingrun.cluster.local.adapter import fits
from trainingrun.cluster.local.layout import Layout
from trainingrun.cluster.local.nodes import ENV_NODE, ENV_STATE, NodeRuns, NodeStore
from trainingrun.cluster.local.podrunner import PodRunner
from trainingrun.cluster.local.podstore import Binding, PodStore, StoredPod, drop_snapshots, snapshot_dir
from trainingrun.cluster.local.settings import LocalSettings
from trainingrun.cluster.local.store import Store
from trainingrun.protocol import wire
from trainingrun.protocol.names import ENV_POD_UID


class Node:
    def __init__(
        self,
        layout: Layout,
        name: str,
        command: tuple[str, ...],
        capacity: dict[str, str],
        settings: LocalSettings,
    ) -> None:
        self.layout = layout
        self.name = name
        self._command = command
        self._capacity = capacity
        self._settings = settings
        self._store = Store(layout.root)
        self._pods = PodStore(layout)
        self._nodes = NodeStore(layout)
        self._instance = ""
        self._runner: PodRunner | None = None

    def enter(self) -> None:
        """Begin this life: take the lock, end what the former life left, and only then be known as ready."""
        self._instance = self._nodes.enter(self.name)
        for stored in self._all_pods():
            if stored.binding is not None and stored.binding.node == self.name:
                processes.kill_carrying({ENV_POD_UID: stored.pod.uid})
                drop_snapshots(Path(stored.binding.snapshot_dir))
        self._nodes.publish(self.name, self._instance, os.getpid(), self._capacity)

    def step(self, now: float) -> None:
        if self._runner is None:
            self._runner = self._claim()
        if self._runner is not None:
            self._runner.step(now)
            if self._runner.gone:
                self._runner = None

    def shut_down(self, now: float) -> None:
        """Ask the pod to stop; it stays as Failed. `idle` tells when its processes are gone."""
        if self._runner is not None:
            self._runner.stop(now, keep_pod=True)

    @property
    def idle(self) -> bool:
        return self._runner is None

    def finish(self, now: float) -> None:
        """One step of a node that shuts down: it takes no pod any more."""
        if self._runner is not None:
            self._runner.step(now)
            if self._runner.gone:
                self._runner = None

    def _claim(self) -> PodRunner | None:
        pending = [pod for pod in self._all_pods() if pod.binding is None and not pod.deleting]
        for stored in sorted(pending, key=lambda item: (item.pod.slot, item.pod.incarnation, item.pod.name)):
            if not fits(stored.pod.resources, self._capacity):
                continue
            folder = snapshot_dir(self._settings.memory_folder, stored.pod.run_uid, stored.pod.name)
            binding = Binding(node=self.name, instance=self._instance, snapshot_dir=str(folder))
            if self._pods.bind(stored, binding):
                bound = self._pods.get(stored.pod.run, stored.pod.name)
                if bound is not None and bound.pod.uid == stored.pod.uid:
                    return PodRunner(self.layout, bound, self._command, self._settings)
        return None

    def _all_pods(self) -> list[StoredPod]:
        return [pod for run in self._store.run_names() for pod in self._pods.of_run(run)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainingrun.cluster.local.node", description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="state directory")
    parser.add_argument("--name", required=True)
    parser.add_argument("--trainer-python", default=os.environ.get("TRAININGRUN_TRAINER_PYTHON", ""))
    parser.add_argument("--capacity", type=json.loads, default={}, help='JSON, e.g. {"cpu": "2"}')
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON of LocalSettings")
    parser.add_argument("--parent", type=int, default=0, help="die when this process, our parent, does")
    options = parser.parse_args(arguments)
    if options.parent:
        processes.die_with_parent(options.parent)
    settings = wire.from_json(LocalSettings, options.settings)
    command = settings.agent_command or (options.trainer_python, "-m", "trainer.agent")
    if not command[0]:
        parser.error(
            "--trainer-python is missing: name the Python that has the trainer, or set it in "
            "TRAININGRUN_TRAINER_PYTHON"
        )
    state = options.state.resolve()
    os.environ.update({ENV_STATE: str(state), ENV_NODE: options.name})
    node = Node(Layout(state), options.name, command, options.capacity, settings)
    try:
        node.enter()
    except NodeRuns as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    _run(node, settings.poll_seconds)
    return 0


def _run(node: Node, poll_seconds: float) -> None:
    """Until SIGTERM or SIGINT; then stop the pod and return. A child that ends wakes it at once."""
    stop: list[int] = []
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda caught, _: stop.append(caught))
    while not stop:
        node.step(time.monotonic())
        _wait(woken, poll_seconds)
    node.shut_down(time.monotonic())
    while not node.idle:
        node.finish(time.monotonic())
        _wait(woken, poll_seconds)


def _wait(woken: int, seconds: float) -> None:
    if select.select([woken], [], [], seconds)[0]:
        with suppress(BlockingIOError):
            os.read(woken, 4096)


if __name__ == "__main__":
    sys.exit(main())
