"""A whole cluster on one machine: nodes, membership and controller as processes over one state directory.

Called by `trainingrun local run`, the scenario tests and the benchmarks. It starts, signals and ends
programs; what the run does is the controller's and membership's business. Every program it starts dies with
this process, and `teardown` leaves no process, no shared memory and no port behind.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from trainingrun.cluster.local import files, processes, sockets
from trainingrun.cluster.local.adapter import LocalPort
from trainingrun.cluster.local.container import checkout_roots, python_path, tail
from trainingrun.cluster.local.nodes import ENV_PROGRAM, ENV_STATE
from trainingrun.cluster.local.podstore import StoredPod
from trainingrun.cluster.local.processes import Process
from trainingrun.cluster.local.settings import LocalSettings
from trainingrun.cluster.local.spawner import Spawner
from trainingrun.cluster.local.store import clock
from trainingrun.protocol import wire
from trainingrun.protocol.names import ENV_POD_UID

MEMBERSHIP, CONTROLLER = "membership", "controller"
START_TIMEOUT_SECONDS = 30.0
STOP_TIMEOUT_SECONDS = 5.0
_RANK_LOG = re.compile(r"epoch-(\d+)\.rank-(\d+)\.log$")


class StateInUse(Exception):
    """Another local cluster uses this state directory."""


class DidNotStart(Exception):
    """A program did not come up; the message ends with its last output."""


@dataclass(frozen=True)
class NodeShape:
    capacity: dict[str, str]
    environment: dict[str, str]


class LocalCluster:
    def __init__(
        self,
        state_dir: Path,
        trainer_python: str,
        operator_python: str = sys.executable,
        settings: LocalSettings | None = None,
        membership_settings: Mapping[str, float] | None = None,
    ) -> None:
        """Takes the state directory; raises StateInUse when another cluster has it."""
        self.root = state_dir.resolve()
        self.root.mkdir(parents=True, exist_ok=True)
        self.settings = settings or LocalSettings()
        self.port = LocalPort(self.root, self.settings)
        self.layout = self.port.layout
        self._operator_python = operator_python
        self._trainer_python = trainer_python
        self._membership_settings = dict(membership_settings or {})  # fields of membership.settings.Settings
        lock = files.hold(self.layout.lock)
        if lock is None:
            raise StateInUse(f"{self.root} is in use by another `trainingrun local` command")
        self._lock: int | None = lock
        self._end_leftovers()
        self._nodes: dict[str, NodeShape] = {}
        environment = {
            **os.environ,
            ENV_STATE: str(self.root),
            "PYTHONPATH": python_path(os.environ.get("PYTHONPATH", ""), checkout_roots()[:1]),
            "PYTHONUNBUFFERED": "1",
        }
        self._spawner = Spawner(environment, self.settings.restart_delay_seconds)

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.teardown()

    # runs

    def apply(self, manifest: Mapping[str, Any]) -> str:
        """Create or update the run and return its uid."""
        return self.port.store.apply(manifest, clock()).uid

    # nodes

    def start_node(
        self,
        name: str,
        capacity: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the node and wait until it is ready. What it has is remembered for its next start.

        `environment` is added to that of its pods (which devices they see).
        """
        if capacity is not None or name not in self._nodes:
            self._nodes[name] = NodeShape(dict(capacity or {}), dict(environment or {}))
        shape = self._nodes[name]
        known = self.port.node_store.get(name)
        command = (
            *self._program("node"),
            *("--name", name, "--trainer-python", self._trainer_python),
            *("--capacity", json.dumps(shape.capacity)),
            *("--settings", json.dumps(wire.to_json(self.settings))),
        )
        self._start(name, command, self.port.node_store.marks(name), shape.environment)

        def entered() -> bool:
            node = self.port.node_store.get(name)
            return node is not None and node != known and self.port.node_store.lives(name)

        self._await(name, entered)

    def stop_node(self, name: str) -> None:
        """An orderly shutdown: the pod on it is asked to stop, and stays as Failed."""
        self._spawner.stop(name, self.settings.grace_seconds + 10)

    def kill_node(self, name: str) -> None:
        """What a power cut does: the node, the agent and all ranks on it, at once, by SIGKILL."""
        self.port.node_store.kill(name)
        self._spawner.kill(name)

    def node_names(self) -> list[str]:
        return list(self._nodes)

    # membership and controller

    def start_membership(self, supervised: bool = False) -> None:
        port = self._membership_port()
        command = (*self._program("membership_main"), "--host", sockets.HOST, "--port", str(port))
        command = (*command, "--settings", json.dumps(self._membership_settings))
        self._start(MEMBERSHIP, command, self._marks(MEMBERSHIP), supervised=supervised)
        self._await(MEMBERSHIP, lambda: sockets.answers(port))

    def start_controller(self, supervised: bool = False) -> None:
        command = self._program("controller_main")
        self._start(CONTROLLER, command, self._marks(CONTROLLER), supervised=supervised)

    def kill(self, program: str) -> None:
        """SIGKILL membership or the controller; nobody starts it again until it is started here."""
        self._spawner.kill(program)

    def crash(self, program: str) -> None:
        """SIGKILL it; if it is supervised, its supervision starts it again."""
        self._spawner.kill(program, forget=False)

    def stop(self, program: str) -> None:
        """SIGTERM, and SIGKILL if that does not end it in time. Nobody starts it again."""
        self._spawner.stop(program, STOP_TIMEOUT_SECONDS)

    def pause(self, program: str) -> None:
        self._spawner.send(program, signal.SIGSTOP)

    def resume(self, program: str) -> None:
        self._spawner.send(program, signal.SIGCONT)

    def runs(self, program: str) -> bool:
        """Whether the program (a node's name too) runs."""
        return self._spawner.runs(program)

    # pods and their processes

    def pod_of(self, run: str, slot: int) -> StoredPod | None:
        """The newest pod of the seat that is not being deleted."""
        pods = [pod for pod in self.port.pod_store.of_run(run) if pod.pod.slot == slot and not pod.deleting]
        return max(pods, key=lambda pod: pod.pod.incarnation, default=None)

    def node_of(self, run: str, slot: int) -> str | None:
        pod = self.pod_of(run, slot)
        return pod.binding.node if pod is not None and pod.binding is not None else None

    def agent(self, run: str, slot: int) -> Process | None:
        """The agent's process: PID 1 of the seat's pod."""
        pod = self.pod_of(run, slot)
        if pod is None or pod.status is None or not pod.status.pid:
            return None
        process = Process(pod.status.pid, pod.status.start_ticks)
        return process if processes.alive(process) else None

    def ranks(self, run: str, slot: int) -> dict[int, Process]:
        """Training processes of the seat by local rank: those that write to a rank's log."""
        pod = self.pod_of(run, slot)
        if pod is None:
            return {}
        found: list[tuple[int, int, Process]] = []
        for process in processes.carrying({ENV_POD_UID: pod.pod.uid}):
            try:
                match = _RANK_LOG.search(str(Path(f"/proc/{process.pid}/fd/1").readlink()))
            except OSError:
                continue
            if match:
                found.append((int(match[1]), int(match[2]), process))
        newest = max((epoch for epoch, _, _ in found), default=0)
        return {rank % pod.pod.processes: process for epoch, rank, process in found if epoch == newest}

    def kill_agent(self, run: str, slot: int) -> None:
        self._kill(self.agent(run, slot), f"run {run} slot {slot}: no agent runs")

    def kill_rank(self, run: str, slot: int, local_rank: int) -> None:
        self._kill(self.ranks(run, slot).get(local_rank), f"run {run} slot {slot}: no rank {local_rank} runs")

    def _kill(self, process: Process | None, otherwise: str) -> None:
        if process is None or not processes.send(process, signal.SIGKILL):
            raise LookupError(otherwise)

    # the end

    def stop_pods(self, hurry: threading.Event | None = None) -> None:
        """Delete all pods and wait until they are gone (SIGTERM, grace, SIGKILL).

        Stop the controller first: it would replace them. Returns at once when `hurry` is set.
        """
        for run in self.port.run_keys():
            for pod in self.port.pods(run):
                self.port.delete_pod(run, pod.name, pod.uid)
        deadline = time.monotonic() + self.settings.grace_seconds + 10
        while time.monotonic() < deadline and any(self.port.pods(run) for run in self.port.run_keys()):
            if hurry is not None and hurry.is_set():
                return
            time.sleep(0.05)

    def teardown(self) -> None:
        """End everything that this cluster started. Runs and their records stay on disk."""
        if self._lock is None:
            return
        self.stop(CONTROLLER)
        for name in self.node_names():
            self._spawner.kill(name)
        self.stop(MEMBERSHIP)
        self._spawner.close()
        self._end_leftovers()
        os.close(self._lock)
        self._lock = None

    def leaks(self) -> list[str]:
        """What is left of this cluster, one line each; empty after `teardown`."""
        found = [
            f"process {process.pid}: {_command_line(process.pid)}"
            for process in processes.carrying({ENV_STATE: str(self.root)})
        ]
        for name in self.port.run_keys():
            run = self.port.store.run(name)
            folder = Path(self.settings.memory_folder) / f"trainingrun-{run.uid[:8]}" if run else None
            if folder is not None and folder.exists():
                found.append(f"shared memory: {folder}")
        where = files.read(self.layout.membership)
        if where is not None and not self.runs(MEMBERSHIP) and sockets.answers(where["port"]):
            found.append(f"port {where['port']} is still open")
        return found

    def _end_leftovers(self) -> None:
        """End what a cluster that was killed left behind; the port drops snapshots and reports lost pods."""
        processes.kill_carrying({ENV_STATE: str(self.root)})
        for run in self.port.run_keys():
            self.port.pods(run)

    # programs

    def _program(self, module: str) -> tuple[str, ...]:
        return (self._operator_python, "-m", f"trainingrun.cluster.local.{module}", "--state", str(self.root))

    def _marks(self, program: str) -> dict[str, str]:
        return {ENV_STATE: str(self.root), ENV_PROGRAM: program}

    def _start(
        self,
        name: str,
        command: tuple[str, ...],
        marks: Mapping[str, str],
        environment: Mapping[str, str] | None = None,
        supervised: bool = False,
    ) -> None:
        if self._spawner.runs(name):
            raise RuntimeError(f"{name} runs already")
        log = self.layout.program_log(name)
        self._spawner.start(name, command, log, marks, environment, supervised)

    def _await(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not ready():
            if not self._spawner.runs(name) or time.monotonic() > deadline:
                log = self.layout.program_log(name)
                raise DidNotStart(f"{name} did not start; the end of {log}:\n{tail(log, 2000)}")
            time.sleep(0.02)

    def _membership_port(self) -> int:
        """One port for the life of the state directory: agents find a restarted service where it was."""
        where = files.read(self.layout.membership)
        if where is None or not sockets.can_listen(where["port"]):
            where = {"host": sockets.HOST, "port": sockets.choose_port()}
            files.replace(self.layout.membership, where)
        port: int = where["port"]
        return port


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "(gone)"
