"""The log of what was trained: one JSON line per step, written by rank 0 of each epoch.

    {"epoch", "step", "loss", "tokens", "learningRate", "gradientNorm", "seconds", "dataWaitSeconds", "at"}
    {"epoch", "step", "numerics": {…}}        what an epoch computes with, before its first step
    {"epoch", "step", "snapshotSeconds"}      a memory snapshot of that step was taken
    {"epoch", "step", "saveStallSeconds"}     the step waited so long for a durable checkpoint of it to begin
    {"epoch", "step", "durable", "saveSeconds"}    it was committed, so long after it began
    {"epoch", "step", "saveFailed"}           a durable checkpoint was not made, as was known after that step

A step's line also has "zLoss" where there is one, and in FP16 "lossScale" and "overflowed".
The loss is written with all its digits. A line is written by one call, so that a kill leaves whole lines only.
Steps that were trained again after a restart appear once per epoch; the epoch records say which of them count.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class MetricsLog:
    """Appends to `folder`/metrics-e<epoch>.jsonl; writes nothing when `on` is False (all ranks but one)."""

    def __init__(self, folder: Path, epoch: int, *, on: bool) -> None:
        self._epoch = epoch
        self._file: int | None = None
        if on:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"metrics-e{epoch:04d}.jsonl"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, step: int, **values: Any) -> None:
        if self._file is not None:
            line = {"epoch": self._epoch, "step": step, **values}
            os.write(self._file, (json.dumps(line) + "\n").encode())
