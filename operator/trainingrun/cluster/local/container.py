"""One container of a pod: the agent as a process, its log and its last words. Called by the pod runner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trainingrun.cluster.local import processes
from trainingrun.protocol import wire
from trainingrun.protocol.messages import Termination
from trainingrun.protocol.names import ENV_POD_UID

TAIL_BYTES = 2048  # of the log, for the message of a container that left no last words


@dataclass(frozen=True)
class ContainerSpec:
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    termination_log: Path

    @property
    def pod_uid(self) -> str:
        return self.environment[ENV_POD_UID]


class Container:
    """Starts on construction. Its processes die with this one (the node), whatever ends it."""

    def __init__(self, spec: ContainerSpec, started_at: float) -> None:
        self.spec = spec
        self.started_at = started_at
        spec.termination_log.unlink(missing_ok=True)
        with spec.log.open("ab") as log:
            self._process = subprocess.Popen(
                spec.command,
                env=dict(spec.environment),
                cwd=spec.log.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=processes.before_exec(),  # the node has one thread
            )

    @property
    def process(self) -> processes.Process | None:
        return processes.find(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs; else as the shell has it. What its first process left behind is ended too."""
        code = self._process.poll()
        if code is None or not self.kill():
            return None
        return processes.shell_code(code)

    def ask_to_stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> bool:
        """SIGKILL to every process of the pod."""
        dead = processes.kill_carrying({ENV_POD_UID: self.spec.pod_uid})
        if dead:
            self._process.wait()
        return dead

    def termination(self, exit_code: int) -> Termination:
        """Its termination message; the end of its log when it left none. The kernel's exit code counts."""
        try:
            said = wire.from_json(Termination, json.loads(self.spec.termination_log.read_text()))
        except (FileNotFoundError, ValueError):
            reason = "Killed" if exit_code > 128 else "Error"
            return Termination(exit_code=exit_code, reason=reason, message=tail(self.spec.log, TAIL_BYTES))
        return replace(said, exit_code=exit_code)


def tail(path: Path, limit_bytes: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - limit_bytes))
            return file.read().decode(errors="replace").strip()
    except FileNotFoundError:
        return ""


def python_path(present: str, source_roots: Sequence[Path]) -> str:
    """PYTHONPATH with the source roots in front, each once."""
    parts = [str(root) for root in source_roots] + [part for part in present.split(os.pathsep) if part]
    return os.pathsep.join(dict.fromkeys(parts))


def checkout_roots() -> tuple[Path, ...]:
    """The two source roots of a checkout; empty when this is installed, as then is the trainer."""
    operator = Path(__file__).resolve().parents[3]
    trainer = operator.parent / "trainer_image"
    return (operator, trainer) if operator.name == "operator" and (trainer / "trainer").is_dir() else ()
