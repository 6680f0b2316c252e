"""What the kubelet does for one pod: start its container, restart it in place with back-off, report, delete.

A state machine that never blocks longer than a kill takes: the node calls `step(now)` often. It writes the
pod's status and nothing else; whether a pod should exist is the controller's business.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from trainingrun.api.quantity import parse_quantity
from trainingrun.cluster.local import files
from trainingrun.cluster.local.backoff import Backoff
from trainingrun.cluster.local.container import Container, ContainerSpec, checkout_roots, python_path
from trainingrun.cluster.local.layout import Layout
from trainingrun.cluster.local.podstore import PodStatus, PodStore, StoredPod, drop_snapshots
from trainingrun.cluster.local.settings import LocalSettings
from trainingrun.cluster.local.store import Store, clock
from trainingrun.ports import PodPhase
from trainingrun.protocol import names
from trainingrun.protocol.exit_codes import NEVER_RESTARTED, ExitCode
from trainingrun.protocol.messages import Termination


class CannotStart(Exception):
    """The pod cannot be started as it is; the message names what is missing."""


class PodRunner:
    """`gone` once the pod's processes are, after a deletion or after `stop`."""

    def __init__(
        self, layout: Layout, stored: StoredPod, command: tuple[str, ...], settings: LocalSettings
    ) -> None:
        if stored.binding is None:
            raise ValueError(f"pod {stored.pod.name} is not bound")
        self.stored = stored
        self.gone = False
        self._store = PodStore(layout)
        self._layout = layout
        self._command = command
        self._settings = settings
        self._snapshots = Path(stored.binding.snapshot_dir)
        self._backoff = Backoff(settings)
        self._container: Container | None = None
        self._start_at: float | None = 0.0  # when to start the container next; None: never again
        self._restarts = 0
        self._termination: Termination | None = None
        self._kill_at: float | None = None  # SIGTERM was sent; SIGKILL follows then
        self._keep_pod = False  # the node shuts down: the pod stays
        self._phase = PodPhase.PENDING

    def step(self, now: float) -> None:
        """`now`: monotonic seconds."""
        if self._kill_at is None and self._deletion_asked():
            self.stop(now)
        if self._container is not None and (code := self._container.exit_code()) is not None:
            self._ended(self._container, code, now)
        if self._kill_at is not None:
            self._stopping(now)
        elif self._start_at is not None and now >= self._start_at:
            self._start(now)

    def stop(self, now: float, keep_pod: bool = False) -> None:
        self._keep_pod = keep_pod
        self._start_at = None
        self._kill_at = now + self._settings.grace_seconds
        if self._container is not None:
            self._container.ask_to_stop()

    def _deletion_asked(self) -> bool:
        folder = self.stored.folder
        return files.read(folder / "deleting") == self.stored.pod.uid or not folder.exists()

    def _start(self, now: float) -> None:
        try:
            spec = self._container_spec()
        except CannotStart as error:
            self._start_at = None
            self._report(PodPhase.FAILED, reason="CannotStart", message=str(error))
            return
        self._start_at = None
        self._container = Container(spec, now)
        self._report(PodPhase.RUNNING)

    def _ended(self, container: Container, code: int, now: float) -> None:
        self._container = None
        self._termination = container.termination(code)
        if self._kill_at is not None:
            return
        if code in NEVER_RESTARTED:
            done = code == ExitCode.DONE
            phase = PodPhase.SUCCEEDED if done else PodPhase.FAILED
            self._report(phase, reason=self._termination.reason, message=self._termination.message)
            return
        delay, self._backoff = self._backoff.after(now - container.started_at)
        self._start_at = now + delay
        self._restarts += 1
        if delay > 0:
            message = f"back-off {delay:g}s after exit code {code}"
            self._report(PodPhase.RUNNING, reason="CrashLoopBackOff", message=message, looping=True)

    def _stopping(self, now: float) -> None:
        if self._container is not None:
            if self._kill_at is not None and now < self._kill_at:
                return
            if not self._container.kill():
                return  # still dying: the pod stays until it is proven dead
            self._container = None
        if not self._keep_pod:
            self._store.remove(self.stored)
        elif self._phase not in (PodPhase.SUCCEEDED, PodPhase.FAILED):
            self._report(PodPhase.FAILED, reason="Terminated", message="the node was shut down")
        drop_snapshots(self._snapshots)
        self.gone = True

    def _report(self, phase: PodPhase, reason: str = "", message: str = "", looping: bool = False) -> None:
        self._phase = phase
        process = self._container.process if self._container is not None else None
        status = PodStatus(
            phase=phase,
            ready=process is not None,
            restarts=self._restarts,
            reason=reason,
            message=message,
            crash_loop_since=clock() if looping else 0.0,
            termination=self._termination,
            pid=process.pid if process else 0,
            start_ticks=process.start_ticks if process else 0,
        )
        self._store.write_status(self.stored.folder, status)  # False: the pod is gone, and step() will see it

    def _container_spec(self) -> ContainerSpec:
        pod, folder = self.stored.pod, self.stored.folder
        logs = self._layout.pod_logs(pod.run, pod.name)
        spec_file, last_words = folder / "spec.json", folder / "termination.json"
        for made in (logs, self._snapshots, self._layout.cache):
            made.mkdir(parents=True, exist_ok=True)
        self._write_spec(spec_file)
        environment = {
            **os.environ,
            "PYTHONPATH": python_path(os.environ.get("PYTHONPATH", ""), checkout_roots()),
            "PYTHONUNBUFFERED": "1",
            names.ENV_RUN_NAME: pod.run,
            names.ENV_RUN_UID: pod.run_uid,
            names.ENV_POD_NAME: pod.name,
            names.ENV_POD_UID: pod.uid,
            names.ENV_NODE_NAME: self.stored.binding.node if self.stored.binding else "",
            names.ENV_POD_ADDRESS: "127.0.0.1",
            names.ENV_SLOT: str(pod.slot),
            names.ENV_INCARNATION: str(pod.incarnation),
            names.ENV_PROCESSES: str(pod.processes),
            names.ENV_MEMBERSHIP_URL: self._membership_url(),
            names.ENV_SPEC_FILE: str(spec_file),
            names.ENV_SNAPSHOT_DIR: str(self._snapshots),
            names.ENV_TERMINATION_LOG: str(last_words),
            names.ENV_LOG_DIR: str(logs),
            names.ENV_CACHE_DIR: str(self._layout.cache),
        }
        environment.setdefault("OMP_NUM_THREADS", str(threads(pod.resources, pod.processes)))
        return ContainerSpec(self._command, environment, logs / "agent.log", last_words)

    def _write_spec(self, spec_file: Path) -> None:
        pod = self.stored.pod
        revisions = Store(self._layout.root).revisions(pod.run, pod.run_uid)
        found = next((item for item in revisions if item.name == pod.revision), None)
        if found is None:
            raise CannotStart(f"pod {pod.name}: its revision {pod.revision} does not exist")
        try:
            files.replace(spec_file, found.spec)
        except FileNotFoundError:
            raise CannotStart(f"pod {pod.name} was removed before it started") from None

    def _membership_url(self) -> str:
        where = json.loads(self._layout.membership.read_text()) if self._layout.membership.exists() else None
        if where is None:
            raise CannotStart(
                f"{self._layout.membership} does not exist: no membership service was ever started"
            )
        return f"http://{where['host']}:{where['port']}"


def threads(resources: Mapping[str, str], processes: int) -> int:
    """Threads of each process, so that a pod does not use more cores than it asked for."""
    return max(1, int(parse_quantity(resources.get("cpu", "1"))) // max(1, processes))
