"""An agent as a local process, and what /proc says about it and everything that it started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.trainer.fake_membership import RUN, UID, FakeMembership

from trainer.agent import last_words
from trainingrun.protocol import names
from trainingrun.protocol.messages import Termination

ROOT = Path(__file__).resolve().parents[2]
Process = tuple[int, int]  # (pid, start time): a pid alone may be another process by now


class AgentProcess:
    def __init__(self, folder: Path, url: str, slot: int = 0, **options: Any):
        self.folder = folder / f"slot-{slot}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.slot = slot
        fake = {"steps": 100000, "stepSeconds": 0.02, **options.pop("fake", {})}
        imports = options.pop("imports", "torch" if fake.get("torch") else "")
        spec = {
            "fake": fake,
            "checkpoint": {"location": {"uri": f"file://{folder}/checkpoints"}, "adopt": False},
            "output": {"uri": f"file://{folder}/model"},
        }
        (self.folder / "spec.json").write_text(json.dumps(options.pop("spec", spec)))
        self.environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}/operator:{ROOT}/trainer_image:{ROOT}",
            "OMP_NUM_THREADS": "1",
            "FAKE_RANK_IMPORTS": imports,
            names.ENV_RUN_NAME: RUN,
            names.ENV_RUN_UID: UID,
            names.ENV_POD_NAME: f"{RUN}-{slot}-0",
            names.ENV_POD_UID: f"pod-{slot}",
            names.ENV_NODE_NAME: f"node-{slot}",
            names.ENV_POD_ADDRESS: "127.0.0.1",
            names.ENV_SLOT: str(slot),
            names.ENV_INCARNATION: "0",
            names.ENV_PROCESSES: "2",
            names.ENV_MEMBERSHIP_URL: url,
            names.ENV_SPEC_FILE: str(self.folder / "spec.json"),
            names.ENV_SNAPSHOT_DIR: str(self.folder / "snapshots"),
            names.ENV_TERMINATION_LOG: str(self.folder / "termination"),
            names.ENV_LOG_DIR: str(self.folder / "logs"),
            names.ENV_CACHE_DIR: str(self.folder / "cache"),
            **options,
        }
        self.log = self.folder / "agent.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", "from tests.trainer.fake_agent import run; run()"],
                env=self.environment,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pid = self.process.pid

    def order(self, rank: int, what: str) -> None:
        (self.folder / "logs" / f"order-{rank}").write_text(what)

    def notes(self, what: str, epoch: int) -> list[dict[str, Any]]:
        path = self.folder / "logs" / "notes.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [n for n in map(json.loads, lines) if n["what"] == what and n["epoch"] == epoch]

    def wait_notes(
        self, what: str, epoch: int, count: int = 2, seconds: float = 30.0
    ) -> list[dict[str, Any]]:
        wait_until(lambda: len(self.notes(what, epoch)) >= count, seconds, f"{what} in epoch {epoch}")
        return self.notes(what, epoch)

    def termination(self) -> Termination | None:
        return last_words.read(self.folder / "termination")

    def wait(self, seconds: float = 30.0) -> int:
        return self.process.wait(seconds)

    def family(self) -> set[Process]:
        """Everything in the agent's session, itself included."""
        return {process for process, session in processes() if session == self.pid}

    def fork_server(self) -> int:
        return next(pid for pid in children(self.pid) if "forkserver" in command(pid))

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def agents(*started: AgentProcess) -> Iterator[tuple[AgentProcess, ...]]:
    try:
        yield started
    finally:
        for agent in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(agent.pid, signal.SIGCONT)
            agent.kill()


def wait_until(what: Any, seconds: float, say: str = "") -> None:
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s: {say}")
        time.sleep(0.01)


def processes() -> list[tuple[Process, int]]:
    """((pid, start time), session) of every process that is not a zombie."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    found.append(((int(entry.name), int(fields[19])), int(fields[3])))
    return found


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""


def wait_gone(family: set[Process], seconds: float = 3.0) -> None:
    wait_until(lambda: not family & {process for process, _ in processes()}, seconds, f"{family} gone")


__all__ = ["AgentProcess", "FakeMembership", "agents", "children", "wait_gone", "wait_until"]
