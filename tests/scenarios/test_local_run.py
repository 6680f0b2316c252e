"""`trainingrun local run` as a user has it: stopped by Ctrl-C, killed, continued, and reported at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.scenarios.command import trainingrun
from tests.scenarios.manifests import small_manifest

from trainingrun.cluster.local import processes
from trainingrun.cluster.local.container import checkout_roots, python_path
from trainingrun.cluster.local.nodes import ENV_STATE
from trainingrun.cluster.local.store import Store

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]

STEPS = 200


class Desk:
    """A folder with a manifest in it, and the command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []
        self.state = folder / ".trainingrun"
        self.talk = folder / "talk.txt"

    def write(self, **changes: Any) -> None:
        held_out = [{"name": "heldout", "uri": f"file://{self.folder / 'text'}", "format": "Text"}]
        changes = {"training__duration": {"steps": STEPS}, "data__validation": held_out, **changes}
        (self.folder / "run.yaml").write_text(yaml.safe_dump(small_manifest(self.folder, **changes)))

    def start(self, *options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "trainingrun.cli", "local", "run", "run.yaml", *options]
        path = python_path(os.environ.get("PYTHONPATH", ""), checkout_roots())
        with self.talk.open("w") as talk:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": path},
                stdout=subprocess.PIPE,
                stderr=talk,
                text=True,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def wait_for(self, condition: Callable[[], Any], what: str, seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}\n{self.talk.read_text()}"
            time.sleep(0.1)

    def said(self, text: str) -> bool:
        return text in self.talk.read_text()

    def committed(self) -> list[str]:
        """The checkpoints that are at the location, oldest first."""
        found = (self.folder / "checkpoints" / "scenario").glob("step-*/manifest.json")
        return sorted(path.parent.name for path in found)

    def age(self) -> float:
        """Seconds since the run was created."""
        run = Store(self.state).run("scenario")
        assert run is not None
        return time.time() - run.created_at

    def left(self) -> list[str]:
        """Processes and shared memory of the run."""
        run = Store(self.state).run("scenario")
        assert run is not None
        memory = Path("/dev/shm") / f"trainingrun-{run.uid[:8]}"
        found = processes.carrying({ENV_STATE: str(self.state)})
        return [str(process) for process in found] + ([str(memory)] if memory.exists() else [])


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    for process in desk.started:
        process.kill()
        process.communicate()


def test_a_run_that_is_stopped_and_then_killed_is_continued_to_its_end(desk: Desk) -> None:
    desk.write()

    first = desk.start("-o", "json")
    # Not until the controller tells of one: stopped at once after its commit, the report still has to name it.
    desk.wait_for(lambda: desk.committed(), "a checkpoint")
    os.kill(first.pid, signal.SIGINT)
    output, _ = first.communicate(timeout=60)
    assert first.returncode == 128 + signal.SIGINT, desk.talk.read_text()
    result = json.loads(output)
    assert result["outcome"] == "Stopped"
    assert result["checkpoint"].endswith("/" + desk.committed()[-1])
    assert result["checkpoint_step"] == int(desk.committed()[-1][5:13])
    assert abs(result["wall_seconds"] - desk.age()) < 5.0
    parts = result["productive_seconds"] + sum(result["lost_seconds"].values())
    assert abs(parts - result["wall_seconds"]) <= 0.5 * (len(result["lost_seconds"]) + 2)  # each is rounded
    assert desk.said("to continue: trainingrun local run run.yaml")
    assert desk.left() == []

    second = desk.start()
    desk.wait_for(lambda: desk.said("continuing the unfinished run scenario"), "that it is continued")
    desk.wait_for(lambda: desk.said("  ETA "), "steps")
    os.kill(second.pid, signal.SIGKILL)
    second.communicate(timeout=10)
    desk.wait_for(lambda: not processes.carrying({ENV_STATE: str(desk.state)}), "that all is dead", 5.0)

    last = desk.start("--fault", "node-kill@80%", "-o", "json")
    output, _ = last.communicate(timeout=200)
    assert last.returncode == 0, desk.talk.read_text()
    result = json.loads(output)
    assert (result["outcome"], result["step"], result["total_steps"]) == ("Complete", STEPS, STEPS)
    assert result["disruptions"], "the killed node is in the report"
    assert result["heldout"]["heldout_loss"] > 0
    assert desk.said("measuring held-out loss on")
    measured = trainingrun(desk.folder, "local", "evaluate", "scenario", "-o", "json")
    assert measured.code == 0, measured.err
    assert "measuring held-out loss on" in measured.err
    figures = {key: value for key, value in json.loads(measured.out).items() if key != "seconds"}
    assert figures.items() <= result["heldout"].items()
    written = small_manifest(desk.folder)["spec"]
    assert result["export"] == written["output"]["uri"]
    assert (Path(result["export"].removeprefix("file://")) / "model.safetensors").exists()
    assert result["checkpoint"].startswith(written["checkpoint"]["location"]["uri"] + "/")
    assert Path(result["checkpoint"].removeprefix("file://")).is_dir()
    assert desk.left() == []

    again = desk.start()
    again.communicate(timeout=30)
    assert again.returncode == 2
    assert desk.said("is complete already")


def test_a_run_that_fails_says_why_and_ends_with_4(desk: Desk) -> None:
    desk.write(recovery={"limits": [{"cause": "Infrastructure", "max": 0}]})
    process = desk.start("--fault", "rank-kill@step=5")
    report, _ = process.communicate(timeout=120)
    assert process.returncode == 4, desk.talk.read_text()
    assert "run scenario failed" in report
    assert "first cause: Infrastructure" in report
    assert "RestartBudgetSpent" in report
    assert "exit code 137" in report
    assert desk.left() == []
