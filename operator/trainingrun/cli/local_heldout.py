"""Measures the exported model on held-out text, in the trainer's environment. Called at the end of a local
run."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainingrun.cluster.local.container import checkout_roots, python_path

TIMEOUT_SECONDS = 900.0


class EvaluationFailed(Exception):
    """The exported model could not be measured; the message ends with the program's last output."""


def evaluate(trainer_python: str, model: str, spec: Mapping[str, Any], cache: Path) -> dict[str, float]:
    """The figures of `trainer.evaluate`: losses and entropies in nats a token. `model`: its URI.

    Raises EvaluationFailed.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": python_path(os.environ.get("PYTHONPATH", ""), checkout_roots()),
    }
    with tempfile.TemporaryDirectory(prefix="trainingrun-") as folder:
        spec_file = Path(folder) / "spec.json"
        spec_file.write_text(json.dumps(spec))
        command = [trainer_python, "-m", "trainer.evaluate", "--model", model]
        command += ["--spec", str(spec_file), "--cache", str(cache)]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
            )
        except KeyboardInterrupt:
            raise EvaluationFailed("interrupted") from None
        except subprocess.TimeoutExpired:
            raise EvaluationFailed(f"no answer within {TIMEOUT_SECONDS:g} s") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise EvaluationFailed(f"exit code {done.returncode}: " + "\n".join(said[-15:]))
    figures: dict[str, float] = json.loads(lines[-1])
    return figures
