"""Two agents and the real membership service: from the first epoch through faults to the end, with times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.trainer.agent_process import ROOT, AgentProcess, agents, wait_gone, wait_until

from trainingrun.protocol import names, wire
from trainingrun.protocol.records import Epoch, RestoreSource, Trigger


class Service:
    """The service as a process of the operator's environment."""

    def __init__(self, file: Path) -> None:
        self.file = file
        setup = [sys.executable, str(ROOT / "tools" / "setup_env.py"), "operator"]
        python = subprocess.run(setup, check=True, capture_output=True, text=True).stdout.strip()
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}/operator:{ROOT}"}
        command = [python, "-m", "tests.trainer.real_membership", str(file)]
        with file.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, cwd=ROOT, stderr=log, stdout=log)
        wait_until(lambda: self._lines(), 30, "the service listens")
        self.url = f"http://127.0.0.1:{self._lines()[0]}"

    def epochs(self) -> list[Epoch]:
        return [wire.from_json(Epoch, json.loads(line)) for line in self._lines()[1:]]

    def wait_epoch(self, number: int, seconds: float = 30.0) -> Epoch:
        wait_until(lambda: len(self.epochs()) >= number, seconds, f"epoch {number}; {self.log()}")
        return self.epochs()[number - 1]

    def log(self) -> str:
        return self.file.with_suffix(".log").read_text()[-3000:]

    def _lines(self) -> list[str]:
        return self.file.read_text().splitlines() if self.file.exists() else []


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    started = Service(tmp_path / "records")
    yield started
    started.process.kill()
    started.process.wait()


def newest(agent: AgentProcess, what: str, epoch: int) -> float:
    return max(note["at"] for note in agent.wait_notes(what, epoch))


def test_a_run_survives_a_killed_rank_and_a_killed_node_and_ends_well(
    tmp_path: Path, service: Service
) -> None:
    fake = {"torch": True, "snapshots": True, "stepSeconds": 0.01}
    pair = [AgentProcess(tmp_path, service.url, slot, fake=fake) for slot in (0, 1)]
    with agents(*pair) as (first, second):
        record = service.wait_epoch(1, 90)
        assert [member.slot for member in record.members] == [0, 1]
        first.wait_notes("stepped", 1)
        wait_until(lambda: list((first.folder / "snapshots").rglob("*.snap")), 5)

        killed_at = time.time()
        os.kill(second.notes("entered", 1)[0]["pid"], 9)
        record = service.wait_epoch(2)
        assert (record.trigger, record.restore.source) == (Trigger.PROCESS_DIED, RestoreSource.MEMORY)
        assert 137 in {e.exit_code for e in record.exits}
        entered, stepped = newest(second, "entered", 2), newest(second, "stepped", 2)
        print(
            f"rank killed: seen after {record.detected_at - killed_at:.3f} s,"
            f" record {record.created_at - killed_at:.3f}, ranks' main {entered - killed_at:.3f},"
            f" first step {stepped - killed_at:.3f}"
        )
        assert stepped - killed_at < 5

        killed_at = time.time()
        family = second.family()
        os.killpg(second.pid, 9)
        second.process.wait()
        wait_gone(family)
        record = service.wait_epoch(3)
        assert [member.slot for member in record.members] == [0]
        assert record.trigger is Trigger.MEMBER_LOST
        stepped = newest(first, "stepped", 3)
        print(
            f"node killed: record after {record.created_at - killed_at:.3f} s,"
            f" survivors step after {stepped - killed_at:.3f}"
        )

        again = AgentProcess(tmp_path / "again", service.url, 1, fake=fake, **{names.ENV_INCARNATION: "1"})
        with agents(again):
            record = service.wait_epoch(4, 60)
            assert [(member.slot, member.incarnation) for member in record.members] == [(0, 0), (1, 1)]
            assert (record.trigger, record.restore.source) == (Trigger.JOINED, RestoreSource.MEMORY)
            assert again.wait_notes("entered", 4)[0]["files"], "fetched from its peer"
            again.wait_notes("stepped", 4)
            for agent in (first, again):
                (agent.folder / "logs" / "finish").touch()
            assert first.wait(60) == 0
            assert again.wait(10) == 0
            last = first.termination()
            assert last is not None
            assert (last.reason, last.epoch) == ("Done", 4)
            assert last.step > record.restore.step > 0
