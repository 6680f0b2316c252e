"""The rank's program with clocks in it: how a step of ours divides. Measures only; nothing else is changed.

Three calls are timed in each step: the executor (forward and backward of all micro-batches), the sum of gradients over
ranks, and the optimizer's update. Everything else of a step, from the end of the one before to its own end, is
overhead: data, counting tokens, the norm, the votes, the logs, snapshots. One clock costs less than a microsecond.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from trainer import rank, step
from trainer.executor import Executor
from trainer.job import RankJob
from trainer.optim import Optimizer

LOG = "split.jsonl"
PARTS = ("forwardBackward", "gradientSum", "optimizer")
_spent = dict.fromkeys(PARTS, 0.0)


def _timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            _spent[part] += time.perf_counter() - started

    return call


def main(job: RankJob, local_rank: int) -> None:
    Executor.run = _timed("forwardBackward", Executor.run)  # type: ignore[method-assign]
    step.collect_gradients = _timed("gradientSum", step.collect_gradients)
    Optimizer.update = _timed("optimizer", Optimizer.update)  # type: ignore[method-assign]
    if local_rank == 0:
        _log_steps(job)
    rank.main(job, local_rank)


def _log_steps(job: RankJob) -> None:
    from trainer import loop

    file = os.open(job.log_dir / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    account = loop.account

    def logged(run: loop.Run, *rest: Any) -> None:
        account(run, *rest)
        line = {"step": run.state.step, "at": time.time(), **_spent}
        os.write(file, (json.dumps(line) + "\n").encode())
        _spent.update(dict.fromkeys(PARTS, 0.0))

    loop.account = logged
