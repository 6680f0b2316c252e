"""Starts programs that die with this process, from a thread that lives as long as they may.

The kernel ties a child's life to the *thread* that started it, so programs are never started from a
caller's thread. A supervised program that ends is started again after a delay, as a Deployment would; one
that was stopped or killed on purpose is not.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainingrun.cluster.local import processes

LOOK_SECONDS = 0.1


@dataclass
class Program:
    name: str
    command: tuple[str, ...]
    log: Path
    environment: Mapping[str, str]  # added to ours
    marks: Mapping[str, str]  # of its environment: by which its own children are found
    process: subprocess.Popen[bytes]
    supervised: bool
    ended_at: float | None = None

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        """SIGKILL to it and to all that it started; a process pool does not always end with its master."""
        if self.runs:
            self.process.kill()
        self.process.wait()
        processes.kill_carrying(self.marks)


class Spawner:
    def __init__(self, environment: Mapping[str, str], restart_delay_seconds: float) -> None:
        self._environment = dict(environment)
        self._delay = restart_delay_seconds
        self._requests: queue.Queue[tuple[Callable[[], Any], queue.Queue[Any]] | None] = queue.Queue()
        self._programs: dict[str, Program] = {}
        self._lock = threading.RLock()  # a program is either being restarted or being ended
        self._thread = threading.Thread(target=self._work, name="spawner", daemon=True)
        self._thread.start()

    def start(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        marks: Mapping[str, str],
        environment: Mapping[str, str] | None = None,
        supervised: bool = False,
    ) -> Program:
        """Start the program. `--parent PID` is added, by which it ties its life to ours. Raises OSError.

        `marks` are environment variables that it and its children alone carry.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        full = (*command, "--parent", str(os.getpid()))
        answer: queue.Queue[Any] = queue.Queue()
        self._requests.put(
            (lambda: self._spawn(name, full, log, environment or {}, marks, supervised), answer)
        )
        result = answer.get()
        if isinstance(result, OSError):
            raise result
        program: Program = result
        return program

    def get(self, name: str) -> Program | None:
        with self._lock:
            return self._programs.get(name)

    def runs(self, name: str) -> bool:
        program = self.get(name)
        return program is not None and program.runs

    def send(self, name: str, number: signal.Signals) -> None:
        program = self.get(name)
        if program is not None and program.runs:
            program.process.send_signal(number)

    def kill(self, name: str, forget: bool = True) -> None:
        """SIGKILL. `forget=False` leaves a supervised program to its supervision."""
        with self._lock:
            program = self.get(name)
            if program is None:
                return
            program.supervised = program.supervised and not forget
            program.end()

    def stop(self, name: str, timeout_seconds: float) -> None:
        """SIGTERM, and SIGKILL when that does not end it in time."""
        with self._lock:
            program = self.get(name)
            if program is None:
                return
            program.supervised = False
            if program.runs:
                program.process.send_signal(signal.SIGCONT)  # one that was stopped could not end
                program.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            program.process.wait(timeout_seconds)
        program.end()

    def close(self) -> None:
        """End the thread, and with it every program that still runs."""
        self._requests.put(None)
        self._thread.join()
        for program in self._programs.values():
            program.end()

    def _work(self) -> None:
        while True:
            try:
                request = self._requests.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                self._supervise(time.monotonic())
                continue
            if request is None:
                return
            action, answer = request
            try:
                answer.put(action())
            except OSError as error:
                answer.put(error)

    def _spawn(
        self,
        name: str,
        command: tuple[str, ...],
        log: Path,
        environment: Mapping[str, str],
        marks: Mapping[str, str],
        supervised: bool,
    ) -> Program:
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                env={**self._environment, **environment, **marks},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a terminal's Ctrl-C is ours alone to act on
            )
        program = Program(name, command, log, environment, marks, process, supervised)
        with self._lock:
            self._programs[name] = program
        return program

    def _again(self, program: Program) -> None:
        self._spawn(program.name, program.command, program.log, program.environment, program.marks, True)

    def _supervise(self, now: float) -> None:
        with self._lock:
            for program in list(self._programs.values()):
                if not program.supervised or program.runs:
                    continue
                if program.ended_at is None:
                    program.ended_at = now
                elif now - program.ended_at >= self._delay:
                    program.end()
                    self._again(program)
