"""What the ranks write appears on the agent's own output: all of it, whatever ends a rank."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.trainer.agent_process import AgentProcess, agents, wait_until
from tests.trainer.fake_membership import FakeMembership

from trainer.agent.echo import Echo
from trainer.agent.step_log import StepLog
from trainingrun.protocol import names
from trainingrun.protocol.messages import AgentPhase, Progress
from trainingrun.protocol.records import EpochSummary


class Output:
    """The reading end of an echo's output."""

    def __init__(self) -> None:
        self._read, self.write = os.pipe()
        self._taken = b""

    def lines(self) -> list[str]:
        os.set_blocking(self._read, False)
        try:
            while chunk := os.read(self._read, 65536):
                self._taken += chunk
        except BlockingIOError:
            pass
        return self._taken.decode().splitlines()

    def close(self) -> None:
        os.close(self._read)


@pytest.fixture
def output() -> Iterator[Output]:
    made = Output()
    yield made
    os.close(made.write)


def test_each_line_carries_the_rank_that_wrote_it(tmp_path: Path, output: Output) -> None:
    echo = Echo(True, output.write)
    echo.follow({0: tmp_path / "0", 3: tmp_path / "3"})  # before the ranks have made their files
    (tmp_path / "0").write_text("one\nhalf a line")
    wait_until(lambda: output.lines() == ["[rank 0] one"], 5)
    with (tmp_path / "3").open("a") as file:
        file.write("three\n")
    wait_until(lambda: output.lines()[1:] == ["[rank 3] three"], 5)
    with (tmp_path / "0").open("a") as file:
        file.write(", and its end\n\nlast words without an end")
    echo.close(5)
    assert output.lines()[2:] == [
        "[rank 0] half a line, and its end",
        "[rank 0] ",
        "[rank 0] last words without an end",
    ]


def test_an_epoch_is_told_to_its_end_before_the_next_one_s_lines(tmp_path: Path, output: Output) -> None:
    echo = Echo(True, output.write)
    for epoch in range(3):
        path = tmp_path / str(epoch)
        echo.follow({0: path})
        path.write_text(f"epoch {epoch} begins\nepoch {epoch} ends")
        echo.finish()
    echo.finish()
    echo.close(5)
    expected = [f"[rank 0] epoch {epoch} {what}" for epoch in range(3) for what in ("begins", "ends")]
    assert output.lines() == expected


def test_a_rank_that_never_wrote_is_forgotten(tmp_path: Path, output: Output) -> None:
    echo = Echo(True, output.write)
    echo.follow({0: tmp_path / "never"})
    echo.close(5)
    assert output.lines() == []


def test_nobody_waits_for_an_output_that_nobody_reads(tmp_path: Path, output: Output) -> None:
    size = fcntl.fcntl(output.write, fcntl.F_GETPIPE_SZ)
    echo = Echo(True, output.write)
    echo.follow({0: tmp_path / "0"})
    lines = [f"line {number} " + "x" * 100 for number in range(2 * size // 100)]
    (tmp_path / "0").write_text("\n".join(lines) + "\n")
    began = time.monotonic()
    echo.follow({1: tmp_path / "1"})
    echo.finish()
    echo.close(0.3)  # gives up
    assert time.monotonic() - began < 2
    wait_until(lambda: len(output.lines()) == len(lines), 5)  # and still loses nothing
    assert output.lines() == [f"[rank 0] {line}" for line in lines]


def test_a_closed_output_is_the_end_of_the_echo_and_of_nothing_else(tmp_path: Path, output: Output) -> None:
    output.close()
    echo = Echo(True, output.write)
    echo.follow({0: tmp_path / "0"})
    (tmp_path / "0").write_text("hello\n" * 10)
    echo.close(5)
    assert not any(thread.name == "echo" for thread in threading.enumerate())


def test_a_line_without_an_end_is_cut(tmp_path: Path, output: Output) -> None:
    echo = Echo(True, output.write)
    echo.follow({0: tmp_path / "0"})
    (tmp_path / "0").write_text("#" * 40_000)
    wait_until(lambda: output.lines(), 5)
    echo.close(5)
    assert sum(line.count("#") for line in output.lines()) == 40_000


def test_where_nobody_asked_for_it_nothing_is_repeated(tmp_path: Path, output: Output) -> None:
    (tmp_path / "0").write_text("hello\n")
    echo = Echo(False, output.write)
    echo.follow({0: tmp_path / "0"})
    echo.close(5)
    assert output.lines() == []


def test_a_pod_s_log_shows_the_training_and_a_killed_rank_s_last_line(tmp_path: Path) -> None:
    membership = FakeMembership()
    fake = {"stepSeconds": 0.01}
    bare = {"HOME": "/nonexistent", names.ENV_LOG_STDOUT: "1"}
    agent = AgentProcess(tmp_path, membership.url, fake=fake, imports="torch", **bare)
    with agents(agent):
        membership.wait_phase(0, AgentPhase.IDLE, 60)
        membership.form([0])
        wait_until(lambda: "[rank 1] rank 1 of 2 starts from step 0" in agent.log.read_text(), 20)
        wait_until(lambda: "agent: step " in agent.log.read_text(), 20, "the first step")
        rank = agent.wait_notes("entered", 1)[0]
        with (agent.folder / "logs" / f"epoch-0001.rank-{rank['rank']:04d}.log").open("a") as file:
            file.write("last words")
        os.kill(rank["pid"], signal.SIGKILL)
        wait_until(lambda: f"[rank {rank['rank']}] last words\n" in agent.log.read_text(), 10)
        membership.wait_phase(0, AgentPhase.FAILED, 10)
        membership.form([0])
        agent.wait_notes("stepped", 2)
        agent.order(0, "raise")
        wait_until(lambda: "[rank 0] ValueError: the loss is a banana\n" in agent.log.read_text(), 10)
    membership.close()


def test_steps_are_said_at_once_then_now_and_then_and_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    log = StepLog(True)

    def at(step: int, now: float, epoch: int = 1, last: bool = False) -> int:
        progress = Progress(step, 2.5, step * 100, 1234.0, 1e-3, 50, EpochSummary(epoch))
        log.look(progress, now, last)
        return len(caplog.messages)

    assert at(1, 0.0) == 1
    assert caplog.messages == ["step 1 of 50: loss 2.5000, 1234 tokens/s, 100 tokens"]
    assert at(2, 5.0) == 1
    assert at(3, 10.0) == 2
    assert at(3, 30.0) == 2
    assert at(4, 31.0, epoch=2) == 3
    assert at(5, 31.5, epoch=2, last=True) == 4
    log.look(None, 60.0, last=True)
    StepLog(False).look(Progress(1, 1.0, 1, 1.0, 1.0, 1, EpochSummary(9)), 0.0)
    assert len(caplog.messages) == 4
