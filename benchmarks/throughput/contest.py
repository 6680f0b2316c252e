"""The contest of one case: each contestant is started once, stopped by SIGSTOP, and runs alone when its turn comes.

So imports, first steps and whatever else happens once are behind them, turns alternate within a minute or so on a
machine that is not the same from one minute to the next, and nobody runs beside the one that is measured. A turn ends
when enough whole steps of it are in the contestant's own log.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.throughput.cases import OURS, TRAINER, Case
from benchmarks.throughput.recipe import threads
from benchmarks.throughput.timing import Step, Turn, whole_steps
from trainer.agent import tether

START_SECONDS = 300.0
TURN_SECONDS = 240.0
WARM_STEPS = 3
POLL_SECONDS = 0.05


class ContestFailed(Exception):
    """A contestant ended, or did not get on."""


@dataclass
class Contestant:
    """One way of training, as the processes of one session."""

    name: str
    case: Case
    processes: int
    corpus: Path
    folder: Path
    split: bool = False
    turns: list[Turn] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self._output = (self.folder / "output").open("wb")
        self._lines: list[dict[str, Any]] = []
        self._read = 0  # bytes of the log
        self._processes = [self._start(*command) for command in self._commands()]
        self._group = self._processes[0].pid

    def __enter__(self) -> Contestant:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            _signal(process.pid, signal.SIGKILL)
            process.wait()
        self._output.close()

    @property
    def log(self) -> Path:
        return self.folder / ("metrics-e0001.jsonl" if self.name == OURS else "steps.jsonl")

    def lines(self) -> list[dict[str, Any]]:
        """Of its log so far. What was read is kept: whoever looks must not take the processor from who is measured."""
        if self.log.exists():
            with self.log.open("rb") as file:
                file.seek(self._read)
                whole, _, _ = file.read().rpartition(b"\n")
            if whole:
                self._read += len(whole) + 1
                self._lines += [json.loads(text) for text in whole.split(b"\n")]
        return self._lines

    def steps(self) -> list[Step]:
        lines = self.lines()
        snapshots = {line["step"]: line["snapshotSeconds"] for line in lines if "snapshotSeconds" in line}
        rows = [line for line in lines if "at" in line]
        whole = self.case.global_batch * self.case.sequence_length
        return [
            Step(
                line["at"],
                line["tokens"] if self.case.padded else whole,
                snapshots.get(line["step"], 0.0),
            )
            for line in rows
        ]

    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    def pause(self) -> None:
        for process in self._processes:
            _signal(process.pid, signal.SIGSTOP)

    def take_turn(self, steps: int) -> None:
        """Run until `steps` whole steps were made in this turn."""
        started = time.time()
        for process in self._processes:
            _signal(process.pid, signal.SIGCONT)
        deadline = time.monotonic() + TURN_SECONDS
        while True:
            self._check(deadline)
            now = time.time()
            done = len(whole_steps(self.steps(), Turn(started, now)))
            if done >= steps:
                break
            time.sleep(max(POLL_SECONDS, (steps - done) * (now - started) / max(1, done) / 4))
        self.pause()
        self.turns.append(Turn(started, now))

    def warm_up(self) -> None:
        """Until its first steps are done."""
        deadline = time.monotonic() + START_SECONDS
        while len(self.steps()) < WARM_STEPS:
            self._check(deadline)
            time.sleep(0.1)
        self.pause()

    def _check(self, deadline: float) -> None:
        if any(process.poll() is not None for process in self._processes):
            raise ContestFailed(f"{self.name} has ended:\n{self.output()[-4000:]}")
        if time.monotonic() > deadline:
            raise ContestFailed(f"{self.name} does not get on:\n{self.output()[-4000:]}")

    def _commands(self) -> list[tuple[list[str], dict[str, str]]]:
        """Ours starts its own ranks; the others are started as torchrun does."""
        base = [self.case.name, str(self.corpus)]
        if self.name == OURS:
            options = [str(self.folder), str(self.processes), *(["--split"] if self.split else [])]
            return [(["benchmarks.throughput.ours", *base, *options], {})]
        module = "trainer_loop" if self.name == TRAINER else "plain_loop"
        port = _free_port()
        return [
            (
                [f"benchmarks.throughput.{module}", *base, str(self.log)],
                {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(self.processes),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "OMP_NUM_THREADS": str(threads(self.processes)),
                },
            )
            for rank in range(self.processes)
        ]

    def _start(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", *command],
            env={**os.environ, **environment},
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=functools.partial(tether.tie, os.getpid()),  # stopped or not, it does not outlive this
        )


def run(case: Case, processes: int, corpus: Path, folder: Path) -> list[Contestant]:
    """All turns of one case; the contestants are gone afterwards, their logs are in `folder`."""
    contestants: list[Contestant] = []
    try:
        for name in case.contestants:
            one = Contestant(name, case, processes, corpus, folder / name.replace(" ", "-"))
            contestants.append(one)
            one.warm_up()
            print(f"{case.name}, {processes}: {name} is warm", file=sys.stderr, flush=True)
        for _ in range(case.turns):
            for one in contestants:
                one.take_turn(case.steps_a_turn)
                shown = one.turns[-1].end - one.turns[-1].start
                print(
                    f"{case.name}, {processes}: turn of {one.name}: {shown:.1f} s",
                    file=sys.stderr,
                    flush=True,
                )
    finally:
        for one in contestants:
            one.__exit__(None, None, None)
    return contestants


def _signal(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
