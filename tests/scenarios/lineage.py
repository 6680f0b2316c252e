"""What was really trained: rebuilt from the records and from what the ranks logged, not from any counter.

A step belongs to the newest epoch that restored a point before it: every later epoch went on from that step or after
it. `surviving` gives that epoch for each step; `check_reads` then compares what the data ranks of that epoch logged
with the permutation, sample by sample and token by token, in the trainer's environment (it needs numpy).
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainingrun.protocol.records import Epoch

CHECKER = Path(__file__).with_name("check_reads.py")


def surviving(epochs: Sequence[Epoch], total_steps: int) -> dict[int, int]:
    """Step -> epoch in which the step that counts was trained."""
    return {
        step: max(epoch.epoch for epoch in epochs if epoch.restore.step < step)
        for step in range(1, total_steps + 1)
    }


@dataclass(frozen=True)
class Losses:
    """Losses by step of the lineage that survived, each exactly as the trainer computed it."""

    by_step: Mapping[int, float]

    def furthest_from(self, other: Losses) -> float:
        """Largest difference over the steps of this run; the other one may have gone on."""
        return max(abs(self.by_step[step] - other.by_step[step]) for step in self.by_step)


def read_losses(logs: Iterable[Path], epochs: Sequence[Epoch], total_steps: int) -> Losses:
    """From the trainer's metrics logs. Fails when a step of the lineage was never reported.

    The one exception: the rank that logs may die in the very step whose state another rank has already kept.
    """
    wanted = surviving(epochs, total_steps)
    found: dict[int, float] = {}
    for log in logs:
        for line in log.read_text().splitlines():
            row = json.loads(line)
            if "loss" in row and wanted.get(row["step"]) == row["epoch"]:
                found[row["step"]] = row["loss"]
    cut_short = {epoch.restore.step for epoch in epochs if epoch.lost or epoch.exits}
    missing = sorted(wanted.keys() - found.keys() - cut_short)
    if missing:
        raise AssertionError(f"no loss was logged for steps {missing[:10]} of the lineage")
    if not all(math.isfinite(loss) for loss in found.values()):
        raise AssertionError("a loss is not finite")
    return Losses(found)


def check_reads(
    reads: Sequence[Path], epochs: Sequence[Epoch], spec: Mapping[str, Any], cache: Path, total_steps: int
) -> None:
    """Every step of the lineage read exactly the samples of the permutation, and their very tokens."""
    question = {
        "reads": [str(path) for path in reads],
        "surviving": surviving(epochs, total_steps),
        "spec": spec,
        "cache": str(cache),
    }
    answer = subprocess.run(
        [os.environ["TRAININGRUN_TRAINER_PYTHON"], str(CHECKER)],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if answer.returncode != 0:
        raise AssertionError(f"the reads are not those of the permutation:\n{answer.stdout}{answer.stderr}")
