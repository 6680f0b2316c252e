"""One local run from start to end: starts the local cluster, watches, injects faults, reports, and cleans up.

It decides nothing about the run: it applies the manifest, shows what controller and membership say, and
stops when status says that the run is over, or when the user wants it. Called by `trainingrun local run`.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from trainingrun.api.constants import Reason
from trainingrun.api.errors import CliExit
from trainingrun.api.quantity import accelerator
from trainingrun.cli.checkpoint_files import Unreadable, look
from trainingrun.cli.live import LiveView, Scene
from trainingrun.cli.local_faults import Fault, FaultPlan
from trainingrun.cli.local_heldout import TIMEOUT_SECONDS, Question, evaluate
from trainingrun.cli.local_preflight import Request, is_over
from trainingrun.cli.report import Report, Saved, build_report, condition, reason_of, stopped
from trainingrun.cluster.local.cluster import CONTROLLER, MEMBERSHIP, LocalCluster
from trainingrun.cluster.local.store import clock
from trainingrun.control.loop import resolve_manifest
from trainingrun.control.parting import write_last_news
from trainingrun.control.planning import PlanBook
from trainingrun.ports import RunObject
from trainingrun.protocol.messages import AgentPhase, RunView, Termination

LOOK_SECONDS = 0.25
LAST_WORDS_SECONDS = 5.0  # after the end, the other pods may still be writing theirs
_STALLED = {
    Reason.PLAN_INFEASIBLE: CliExit.NOTHING_FITS,
    Reason.INVALID_SPEC: CliExit.BAD_INPUT,
    Reason.NO_USABLE_CHECKPOINT: CliExit.RUN_FAILED,
}


@dataclass
class Session:
    cluster: LocalCluster
    request: Request
    trainer_python: str
    console: Console
    faults: Sequence[Fault] = ()
    _events: int = 0  # told already
    _restarts: dict[str, int] = field(default_factory=dict)  # by pod, told already
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> tuple[Report, CliExit | int]:
        """Everything between the checks and the exit: the report, and the exit code."""
        with _Signals(self._stop):
            view = LiveView(self.console)
            try:
                outcome, code = self._watch(view)
                words = self._last_words() if outcome == "Complete" else None
                self._tell_events(view)
                self._shut_down(view, outcome)
            finally:
                view.close()
                self.cluster.teardown()
        return self._report(outcome, words), code

    def measure(self, report: Report) -> Report:
        """The report with the figures of the exported model, when there are held-out texts to measure it on.

        Raises EvaluationFailed.
        """
        if not report.export or not self.request.spec["data"]["validation"]:
            return report
        self._say("the run is complete; its model is now measured on held-out text (Ctrl-C is safe)")
        question = Question(report.export, self.request.spec)
        cache = self.cluster.layout.cache
        figures = evaluate(self.trainer_python, question, cache, self._say, TIMEOUT_SECONDS)
        return replace(report, heldout=figures)

    def _say(self, text: str) -> None:
        self.console.print(Text(text, style="dim"), soft_wrap=True)

    # while it runs

    def _watch(self, view: LiveView) -> tuple[str, CliExit | int]:
        cluster, name = self.cluster, self.request.name
        run = cluster.port.store.run(name)
        self._events = 0 if run is None else len(cluster.port.store.events(name))
        uid = cluster.apply(self.request.manifest)
        cluster.start_membership(supervised=True)
        cluster.start_controller(supervised=True)
        for number in range(self.request.nodes):
            cluster.start_node(f"node-{number}", self._capacity(), self._devices(number))
        faults = FaultPlan(self.faults, cluster, name, lambda text: view.note("Fault", text, "magenta"))
        while not self._stop.wait(LOOK_SECONDS):
            run = cluster.port.store.run(name)
            if run is None:
                return "Failed", CliExit.MISSING
            known = cluster.port.membership(uid) if cluster.runs(MEMBERSHIP) else None
            self._tell_events(view)
            self._tell_restarts(view)
            view.show(Scene(known, run.status, self.request.nodes), time.monotonic())
            if over := is_over(run):
                return over, CliExit.OK if over == "Complete" else CliExit.RUN_FAILED
            if (code := stalled_for_good(run, known)) is not None:
                return "Failed", code
            self._inject(faults, known)
        return "Stopped", 128 + signal.SIGINT

    def _inject(self, faults: FaultPlan, known: RunView | None) -> None:
        progress = known.progress if known is not None else None
        members = known.members if known is not None else ()
        seats = [member.slot for member in members if member.in_epoch and member.phase is AgentPhase.RUNNING]
        step, total = (progress.step, progress.total_steps) if progress is not None else (0, 0)
        faults.step(step, total, seats, time.monotonic())

    def _tell_events(self, view: LiveView) -> None:
        for event in self.cluster.port.store.events(self.request.name, self._events):
            self._events += 1
            view.event(event)

    def _tell_restarts(self, view: LiveView) -> None:
        """A container that its node starts again in place: no event of the controller's, but worth a line."""
        for pod in self.cluster.port.pods(self.request.name):
            if pod.restarts > self._restarts.get(pod.name, 0) and pod.termination is not None:
                lines = pod.termination.message.strip().splitlines() or ["no last words"]
                what = f"the agent on {pod.node} ended with exit code {pod.termination.exit_code}"
                view.note("Restarted", f"{what} and is started again: {lines[-1]}", "yellow")
            self._restarts[pod.name] = pod.restarts

    def _capacity(self) -> dict[str, str]:
        return {key: str(value) for key, value in self.request.spec["resources"]["perNode"].items()}

    def _devices(self, number: int) -> dict[str, str]:
        """Each node sees its own accelerators only; without any asked for, none."""
        wanted = accelerator(self.request.spec["resources"]["perNode"])
        count = wanted[1] if wanted is not None else 0
        devices = ",".join(str(number * count + index) for index in range(count))
        return {"CUDA_VISIBLE_DEVICES": devices, "HIP_VISIBLE_DEVICES": devices}

    # at its end

    def _last_words(self) -> Termination | None:
        """Of the pod that finished the run: the one that names the exported model or the last checkpoint."""
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        while True:
            words = [pod.termination for pod in self.cluster.port.pods(self.request.name) if pod.termination]
            best = max(
                words, key=lambda item: (bool(item.export), bool(item.manifest), item.step), default=None
            )
            if (best is not None and best.manifest) or time.monotonic() > deadline:
                return best
            time.sleep(0.1)

    def _shut_down(self, view: LiveView, outcome: str) -> None:
        """Stop what decides before what works, so that nothing is replaced while it leaves."""
        if outcome == "Stopped":
            view.note("Stopping", "the pods are asked to leave (Ctrl-C again ends them at once)")
        self._stop.clear()
        self.cluster.stop(CONTROLLER)
        if outcome == "Stopped":
            port, name = self.cluster.port, self.request.name
            write_last_news(
                port, name, clock(), PlanBook(), lambda manifest: resolve_manifest(dict(manifest))
            )
            self._tell_events(view)
        self.cluster.stop(MEMBERSHIP)
        self.cluster.stop_pods(self._stop)

    def _report(self, outcome: str, words: Termination | None) -> Report:
        store, name = self.cluster.port.store, self.request.name
        run = store.run(name)
        status = run.status if run is not None else {}
        epochs = len(store.epochs(name, run.uid)) if run is not None else 0
        logs = str(store.layout.run(name) / "logs")
        location = self.request.spec["checkpoint"]["location"]["uri"]
        report = build_report(name, status, outcome, epochs, words, location, logs)
        if outcome == "Failed" and condition(status, "Failed").get("status") != "True":
            report = replace(report, failure={"reason": reason_of(status, "Stalled")})
        if outcome == "Stopped" and run is not None:
            report = stopped(report, clock() - run.created_at, self._saved())
        return report

    def _saved(self) -> Saved | None:
        """The newest checkpoint at the run's location, now that nobody writes there any more."""
        folder = self.request.location
        try:
            newest = look(folder).newest if folder is not None and folder.exists() else None
        except Unreadable:
            return None
        if newest is None:
            return None if folder is None else Saved()
        uri = str(self.request.spec["checkpoint"]["location"]["uri"])
        return Saved(f"{uri.rstrip('/')}/{newest.name}", newest.step)


def stalled_for_good(run: RunObject, known: RunView | None) -> CliExit | None:
    """The exit code when only a person can help; None while there is hope. `known`: by membership.

    The status of a run that is continued tells of the last session, until the controller has looked again.
    """
    stalled = condition(run.status, "Stalled")
    if stalled.get("status") != "True" or stalled["observedGeneration"] != run.generation:
        return None
    if stalled["reason"] == Reason.NO_USABLE_CHECKPOINT and not (known is not None and known.blocked):
        return None
    return next((code for reason, code in _STALLED.items() if reason == stalled["reason"]), None)


class _Signals:
    """Ctrl-C and SIGTERM set the event instead of ending the program in the middle of something."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, lambda *_: self._stop.set())

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def continue_hint(file: Path, state: Path) -> str:
    return f"to continue: trainingrun local run {file} --state {state}"
