"""The `trainingrun` command as a user has it: a process in a folder, its output, its exit code, what it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from trainingrun.cluster.local import processes
from trainingrun.cluster.local.container import checkout_roots, python_path
from trainingrun.cluster.local.nodes import ENV_STATE
from trainingrun.cluster.local.store import Store

LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


class Command:
    """`trainingrun ARGUMENTS` in `folder`; killed when the context is left before it has ended."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._talk = tempfile.TemporaryFile()  # noqa: SIM115 - closed on exit
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trainingrun.cli", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": python_path(os.environ.get("PYTHONPATH", ""), checkout_roots())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._talk,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._talk.close()

    def wait_for(self, condition: Callable[[], object], what: str, timeout_seconds: float = 120.0) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            assert self._process.poll() is None, f"ended before {what}:\n{self.err()}"
            assert time.monotonic() < deadline, f"not within {timeout_seconds:g} s: {what}\n{self.err()}"
            time.sleep(LOOK_SECONDS)

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self, timeout_seconds: float = 120.0) -> Ended:
        out, _ = self._process.communicate(timeout=timeout_seconds)
        return Ended(self._process.returncode, out, self.err())

    def err(self) -> str:
        descriptor = self._talk.fileno()  # shared with the command: only its place must not be moved
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode()


def trainingrun(folder: Path, *arguments: str, timeout_seconds: float = 120.0) -> Ended:
    with Command(folder, *arguments) as command:
        return command.end(timeout_seconds)


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    (folder / "run.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))


def left_behind(folder: Path) -> list[str]:
    """Processes and shared memory of the local cluster whose state is in `folder`."""
    state = folder / ".trainingrun"
    found = [str(process) for process in processes.carrying({ENV_STATE: str(state)})]
    store = Store(state)
    runs = (store.run(name) for name in store.run_names())
    memory = [Path("/dev/shm") / f"trainingrun-{run.uid[:8]}" for run in runs if run is not None]
    return found + [str(path) for path in memory if path.exists()]
