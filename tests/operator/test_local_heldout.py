"""Measuring an exported model: what is passed on, how it ends, and what cannot be measured. The program is a script."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from trainingrun.cli import local_heldout
from trainingrun.cli.local_heldout import EvaluationFailed, Interrupted, Question, evaluate
from trainingrun.cli.local_preflight import read_request
from trainingrun.cli.main import app
from trainingrun.cluster.local.store import Store

EXAMPLE = Path(__file__).resolve().parents[1] / "golden" / "run.yaml"
FIGURES = {
    "heldout_loss": 3.1,
    "unigram_entropy": 5.5,
    "bigram_entropy": 3.4,
    "tokens": 4000,
    "measured_tokens": 4096,
    "heldout_tokens": 90000,
}
MEASURES = f"echo 'evaluate: measuring held-out loss' >&2; echo '{json.dumps(FIGURES)}'"
QUESTION = Question("file:///models/demo", {"data": {}})


def a_program(folder: Path, script: str) -> str:
    """In place of the trainer's Python; what it is called with is kept in `arguments`."""
    program = folder / "python"
    program.write_text(f'#!/bin/sh\necho "$@" > {folder}/arguments\n{script}\n')
    program.chmod(0o755)
    return str(program)


def test_progress_is_passed_on_as_it_comes_and_the_figures_come_back(tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    script = f"echo 'evaluate: first' >&2; while [ ! -e {go_on} ]; do sleep 0.05; done; {MEASURES}"
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        go_on.touch()  # it ends only if its first line is told before its end

    assert evaluate(a_program(tmp_path, script), QUESTION, tmp_path / "cache", say, 30) == FIGURES
    assert said == ["first", "measuring held-out loss"]
    assert "--tokens" not in (tmp_path / "arguments").read_text()
    evaluate(a_program(tmp_path, MEASURES), Question("m", {}, 70), tmp_path, say)
    assert (tmp_path / "arguments").read_text().split()[-2:] == ["--tokens", "70"]


def test_what_libraries_print_is_kept_for_the_error(tmp_path: Path) -> None:
    said: list[str] = []
    script = "echo 'a warning' >&2; echo 'evaluate: at work' >&2; echo 'error: no such model' >&2; exit 64"
    with pytest.raises(EvaluationFailed, match="exit code 64: a warning\nerror: no such model"):
        evaluate(a_program(tmp_path, script), QUESTION, tmp_path, said.append)
    assert said == ["at work"]


def test_a_program_that_hangs_is_ended(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(EvaluationFailed, match=r"not done within 0\.3 s"):
        evaluate(a_program(tmp_path, "exec sleep 60"), QUESTION, tmp_path, print, 0.3)
    assert time.monotonic() - started < 20


def test_ctrl_c_ends_the_program_too(tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/pid; echo 'evaluate: at work' >&2; exec sleep 60"

    def say(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        evaluate(a_program(tmp_path, script), QUESTION, tmp_path, say)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


class Desk:
    """A state folder with one run in it, and the command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(folder / ".trainingrun")
        self.manifest: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
        self.model = folder / "model"

    def complete(self, exported: bool = True) -> None:
        file = self.folder / "run.yaml"
        file.write_text(yaml.safe_dump(self.manifest))
        run = self.store.apply(read_request(file, self.folder, None).manifest, 1.0)
        status = {"output": {"export": f"file://{self.model}"}} if exported else {}
        self.store.write_status(run.name, status, run.resource_version)
        self.model.mkdir()
        (self.model / "source.json").write_text(json.dumps({"runUid": run.uid}))

    def measure(self, *options: str, script: str = MEASURES) -> Any:
        program = a_program(self.folder, script)
        command = ["local", "evaluate", "pretrain-stdlib", "--trainer-python", program, *options]
        return CliRunner().invoke(app, command)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.chdir(tmp_path)
    return Desk(tmp_path)


def test_a_finished_run_is_measured_again_when_asked(desk: Desk) -> None:
    desk.complete()
    result = desk.measure("--tokens", "5000")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("held-out loss 3.100 nats/token")
    assert "the same 4,000 tokens, a sample of 90,000" in result.stdout
    assert result.stderr == "measuring held-out loss\n"
    arguments = (desk.folder / "arguments").read_text()
    assert f"-m trainer.evaluate --model file://{desk.model} --spec" in arguments
    assert f"--cache {desk.store.layout.cache} --tokens 5000" in arguments
    assert json.loads(desk.measure("-o", "json").stdout) == FIGURES


def test_a_run_without_a_model_of_its_own_is_refused(desk: Desk) -> None:
    desk.complete(exported=False)
    early = desk.measure()
    assert early.exit_code == 2
    assert "it has exported no model: it is not complete yet" in early.stderr
    run = desk.store.run("pretrain-stdlib")
    assert run is not None
    export = {"output": {"export": f"file://{desk.model}"}}
    desk.store.write_status(run.name, export, run.resource_version)
    (desk.model / "source.json").write_text(json.dumps({"runUid": "another"}))
    replaced = desk.measure()
    assert replaced.exit_code == 2
    assert f"its exported model is not in {desk.model} any more" in replaced.stderr
    assert not (desk.folder / "arguments").exists()


def test_a_run_without_held_out_text_is_refused(desk: Desk) -> None:
    del desk.manifest["spec"]["data"]["validation"]
    desk.complete()
    result = desk.measure()
    assert result.exit_code == 2
    assert "spec.data.validation is empty" in result.stderr


@pytest.mark.parametrize(
    ("fault", "code"), [(EvaluationFailed("exit code 1"), 1), (Interrupted("by hand"), 130)]
)
def test_the_exit_code_tells_a_fault_from_ctrl_c(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, fault: Exception, code: int
) -> None:
    def fail(*_: object) -> list[str]:
        raise fault

    desk.complete()
    monkeypatch.setattr(local_heldout, "_listen", fail)
    assert desk.measure("-o", "json").exit_code == code
