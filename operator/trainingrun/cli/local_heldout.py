"""Measures an exported model on the run's held-out text, in the trainer's environment.

Called at the end of a local run, and by `trainingrun local evaluate`. What the measuring program tells of its progress
is passed on as it comes; what it measures, and how much of a large text, is decided there (`trainer.evaluate`).
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainingrun.api.load import parse, resolve
from trainingrun.api.uris import file_path
from trainingrun.cli.checkpoint_files import exported_by
from trainingrun.cli.local_preflight import Refused
from trainingrun.cluster.local.container import checkout_roots, python_path
from trainingrun.ports import RunObject

TIMEOUT_SECONDS = 900.0  # at the end of a run; nobody has asked for it there
_TALK = "evaluate: "  # begins the lines of trainer.evaluate that are for people


class EvaluationFailed(Exception):
    """The exported model could not be measured; the message ends with the program's last output."""


class Interrupted(EvaluationFailed):
    """By Ctrl-C."""


@dataclass(frozen=True)
class Question:
    """What is measured on what."""

    model: str  # URI
    spec: Mapping[str, Any]  # resolved
    tokens: int | None = None  # about so many; None: as many as the measuring program thinks right


def question_of(run: RunObject, tokens: int | None) -> Question:
    """Raises Refused when the run has no exported model any more, or no held-out text."""
    spec = resolve(parse(run.manifest, None), None)
    if not spec["data"]["validation"]:
        raise Refused(
            f"run {run.name}: spec.data.validation is empty, so there is nothing to measure on\n"
            "  hint: a new run may name a validation source; this one cannot be changed"
        )
    model = str((run.status.get("output") or {}).get("export", ""))
    if not model:
        why = "it is not complete yet" if spec["output"] else "spec.output is not set"
        raise Refused(
            f"run {run.name}: it has exported no model: {why}\n"
            "  hint: `trainingrun checkpoint export` makes a model of a checkpoint"
        )
    folder = file_path(model)
    if folder is not None and exported_by(Path(folder)) != run.uid:
        raise Refused(
            f"run {run.name}: its exported model is not in {folder} any more\n"
            "  hint: put it back, or make it anew with `trainingrun checkpoint export`"
        )
    return Question(model, spec, tokens)


def evaluate(
    trainer_python: str,
    question: Question,
    cache: Path,
    say: Callable[[str], None],
    timeout_seconds: float | None = None,
) -> dict[str, float]:
    """The figures of `trainer.evaluate`: losses and entropies in nats a token. `say` gets its progress as it comes.

    Raises EvaluationFailed, Interrupted.
    """
    path = python_path(os.environ.get("PYTHONPATH", ""), checkout_roots())
    with tempfile.TemporaryDirectory(prefix="trainingrun-") as folder:
        spec_file, answer = Path(folder) / "spec.json", Path(folder) / "answer"
        spec_file.write_text(json.dumps(question.spec))
        command = [trainer_python, "-m", "trainer.evaluate", "--model", question.model]
        command += ["--spec", str(spec_file), "--cache", str(cache)]
        command += [] if question.tokens is None else ["--tokens", str(question.tokens)]
        with answer.open("w") as stdout:
            process = subprocess.Popen(
                command,
                env={**os.environ, "PYTHONPATH": path},
                stdout=stdout,
                stderr=subprocess.PIPE,
                text=True,
            )
        late = threading.Event()
        said = _listen(process, say, late, timeout_seconds)
        if late.is_set():
            raise EvaluationFailed(f"it was not done within {timeout_seconds:g} s")
        lines = [line for line in answer.read_text().splitlines() if line.startswith("{")]
    if process.returncode != 0 or not lines:
        raise EvaluationFailed(f"exit code {process.returncode}: " + "\n".join(said[-15:]))
    figures: dict[str, float] = json.loads(lines[-1])
    return figures


def _listen(
    process: subprocess.Popen[str], say: Callable[[str], None], late: threading.Event, seconds: float | None
) -> list[str]:
    """Until it has ended, or is ended because it took longer than `seconds` (`late` is set then) or by Ctrl-C: all that
    it wrote to standard error, without what was for people.
    """

    def end() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(seconds if seconds is not None else threading.TIMEOUT_MAX, end)
    timer.daemon = True
    timer.start()
    try:
        said = list(_passed_on(process.stderr or (), say))
        process.wait()
    except KeyboardInterrupt:
        raise Interrupted("interrupted") from None
    finally:
        timer.cancel()
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
    return said


def _passed_on(lines: Iterable[str], say: Callable[[str], None]) -> Iterable[str]:
    for line in lines:
        if line.startswith(_TALK):
            say(line.removeprefix(_TALK).rstrip())
        elif line.strip():
            yield line.rstrip()
