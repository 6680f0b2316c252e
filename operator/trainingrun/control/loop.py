"""The controller's program: waits for news, and reconciles the runs that they may concern, one at a time.

The only file of the controller that reads the clock. Each run is worked on as a task of its own, so that
an error in one is logged and backed off without stopping the others. News may get lost: every
`resync_seconds` all runs are looked at. Called by the CLI (`local run`) and by the controller's process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainingrun.api.load import parse, resolve
from trainingrun.control.planning import PlanBook
from trainingrun.control.policy import Policy
from trainingrun.control.queue import WorkQueue
from trainingrun.control.reconcile import Outcome, Resolve, reconcile
from trainingrun.control.refusal_book import RefusalBook
from trainingrun.ports import ControlPort, Refused, Unavailable

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ControllerSettings:
    debounce_seconds: float = 0.1  # news of this long are handled together
    resync_seconds: float = 30.0  # all runs are looked at this often, whatever was heard
    first_backoff_seconds: float = 0.2  # after an error or a conflict; doubles
    longest_backoff_seconds: float = 30.0
    # The same where the world could not be reached or had changed: when it is back, runs must not wait for long.
    longest_retry_seconds: float = 5.0
    plan_poll_seconds: float = 0.1  # while a plan is being made
    heartbeat_file: Path | None = None  # touched in every round, for a liveness probe
    policy: Policy = field(default_factory=Policy)


def resolve_manifest(manifest: dict[str, Any]) -> dict[str, Any]:
    """The resolved spec of a stored manifest, whose paths are absolute. Raises InvalidManifest."""
    return resolve(parse(manifest, None), None)


def run_controller(
    port: ControlPort,
    settings: ControllerSettings,
    stop: threading.Event,
    *,
    plans: PlanBook | None = None,
    resolve: Resolve | None = None,
    clock: Callable[[], float] = time.time,
) -> None:
    """Reconcile until `stop` is set. State is in the world only: it may be killed at any time and started
    again.
    """
    book = PlanBook() if plans is None else plans
    controller = _Controller(port, settings, book, resolve or (lambda stored: resolve_manifest(dict(stored))))
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="reconcile") as tasks:
        try:
            controller.hear(None, clock())
            while not stop.is_set():
                controller.work(clock, tasks)
                if settings.heartbeat_file is not None:
                    settings.heartbeat_file.touch()
                news = port.wait_for_change(controller.patience(clock()))
                stop.wait(settings.debounce_seconds)
                controller.hear(news, clock())
        finally:
            book.close()


class _Controller:
    def __init__(
        self, port: ControlPort, settings: ControllerSettings, plans: PlanBook, resolve: Resolve
    ) -> None:
        self.port = port
        self.settings = settings
        self.plans = plans
        self.resolve = resolve
        self.refusals = RefusalBook()
        self.queue = WorkQueue(settings.first_backoff_seconds, settings.longest_backoff_seconds)
        self._resync_at = float("-inf")

    def hear(self, news: Collection[str] | None, now: float) -> None:
        """The runs of these keys may have changed; None: any run. All are looked at from time to time."""
        if news is not None and now < self._resync_at:
            for key in news:
                self.queue.add(key, now)
            return
        try:
            keys = self.port.run_keys()
        except (Unavailable, Refused) as error:
            log.warning("cannot list the runs: %s", error)
            return
        self._resync_at = now + self.settings.resync_seconds
        for key in keys:
            self.queue.add(key, now)
        self.queue.forget(self.queue.keys() - set(keys))
        self.refusals.forget(self.refusals.keys() - set(keys))

    def work(self, clock: Callable[[], float], tasks: ThreadPoolExecutor) -> None:
        for name in self.queue.take(clock()):  # keys
            task = tasks.submit(self._reconcile, name, clock())
            error = task.exception()
            now = clock()
            if error is not None:
                delay = self.queue.failed(name, now)
                log.error("run %s: next try in %.1f s", name, delay, exc_info=error)
                continue
            self._note(name, task.result(), now)

    def patience(self, now: float) -> float:
        """How long to wait for news at most."""
        longest = min(max(0.1, self._resync_at - now), self.settings.resync_seconds)
        due = self.queue.next_due()
        return longest if due is None else min(max(0.0, due - now), longest)

    def _reconcile(self, name: str, now: float) -> Outcome:
        settings = self.settings
        return reconcile(self.port, name, now, self.plans, self.resolve, settings.policy, self.refusals)

    def _note(self, name: str, outcome: Outcome, now: float) -> None:
        if outcome.retry:
            delay = self.queue.failed(name, now, self.settings.longest_retry_seconds)
            log.info("run %s: next try in %.1f s: %s", name, delay, outcome.reason)
            return
        if outcome.reason:
            log.info("run %s: %s", name, outcome.reason)
        self.queue.succeeded(name)
        if outcome.planning:  # an answer is no news of the port's
            self.queue.add(name, now + self.settings.plan_poll_seconds)
        if outcome.revisit_at is not None:
            self.queue.add(name, max(outcome.revisit_at, now))
