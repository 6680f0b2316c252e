"""The line that a contestant other than ours writes after each step, as ours does with its metrics."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


class StepLog:
    """Appends to `path`; writes nothing on ranks other than the first."""

    def __init__(self, path: Path, *, on: bool) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) if on else None
        self._step = 0

    def over(self, *, tokens: int, loss: float | None) -> None:
        self._step += 1
        if self._file is not None:
            line = {"step": self._step, "tokens": tokens, "loss": loss, "at": time.time()}
            os.write(self._file, (json.dumps(line) + "\n").encode())
