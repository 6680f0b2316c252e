"""Plans made outside the control loop: a book of questions, each answered once by a process of its own.

The key is the content of the resolved spec, so a changed spec is a new question and a restarted controller
asks again. Used by `loop`; `answer` is what runs in the other process.
"""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from trainingrun.api.quantity import accelerator
from trainingrun.control.observed import PlanFailure, PlanOutcome, PlanPending, PlanResult
from trainingrun.planner.errors import PlanError
from trainingrun.planner.inputs import planner_inputs
from trainingrun.planner.search import plan
from trainingrun.protocol import wire

Planner = Callable[[dict[str, Any]], PlanResult | PlanFailure]

_CPUS_ONLY = (
    "spec.resources.perNode[{0}]: {1} asked for, but the trainer of this version computes on CPUs only\n"
    "  hint: ask for cpu and memory only, and set processesPerNode; for accelerators, "
    "`trainingrun plan --accelerator NAME` shows plans offline"
)
_REMEMBERED = 64  # answers kept; a plan is needed only until its revision exists


def answer(spec: dict[str, Any]) -> PlanResult | PlanFailure:
    """The plan for a resolved spec, or why there is none."""
    asked = accelerator(spec["resources"]["perNode"])
    if asked is not None:
        return PlanFailure(_CPUS_ONLY.format(*asked))
    try:
        model, training, inventory = planner_inputs(spec)
        path = plan(model, training, inventory)
    except PlanError as error:
        return PlanFailure(str(error))
    return PlanResult(
        rungs=tuple(planned.rung for planned in path.rungs),
        plan=wire.to_json(path),
        planner_version=path.planner_version,
        reason=path.reason,
    )


def process_pool() -> Executor:
    """One process, started when the first plan is asked for. Not forked: the controller has threads."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(max_workers=1, mp_context=context, initializer=_end_with_parent)


def _end_with_parent() -> None:
    """A planner must not outlive a controller that was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_wait_for_end, args=(parent.sentinel,), daemon=True).start()


def _wait_for_end(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


class PlanBook:
    """Implements `reconcile.Planning` with an executor."""

    def __init__(self, planner: Planner = answer, executor: Callable[[], Executor] = process_pool) -> None:
        self._planner = planner
        self._make_executor = executor
        self._executor: Executor | None = None
        self._answers: dict[str, Future[PlanResult | PlanFailure]] = {}

    @property
    def pending(self) -> bool:
        return any(not future.done() for future in self._answers.values())

    def outcome(self, spec: Mapping[str, Any]) -> PlanOutcome:
        future = self._answers.get(_key(spec))
        if future is None:
            return None
        if not future.done():
            return PlanPending()
        if isinstance(future.exception(), BrokenProcessPool):
            del self._answers[_key(spec)]  # the process was killed; ask a new one
            self._executor = None
            return None
        return future.result()

    def request(self, spec: Mapping[str, Any]) -> None:
        key = _key(spec)
        if key in self._answers:
            return
        if self._executor is None:
            self._executor = self._make_executor()
        while len(self._answers) >= _REMEMBERED:
            del self._answers[next(iter(self._answers))]
        self._answers[key] = self._executor.submit(self._planner, json.loads(key))

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None


def _key(spec: Mapping[str, Any]) -> str:
    return json.dumps(spec, sort_keys=True)
