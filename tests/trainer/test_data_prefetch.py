"""Reading ahead changes when something is read, and nothing else."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch
from tests.trainer.texts import a_store

from trainer.data.batches import BatchReader, StepData, read_log
from trainer.data.errors import StoreDamaged
from trainer.data.prefetch import DEPTH, Prefetch
from trainer.data.samples import Samples

STEPS = 12


def a_reader(folder: Path, log: str, kind: type[BatchReader] = BatchReader) -> BatchReader:
    if not (folder / "s").exists():
        a_store(folder / "s", [30] * 40)
    from trainer.data.store import TokenStore

    return kind(
        Samples.of_store(TokenStore.at(folder / "s"), seed=5, sequence_length=8),
        global_batch=6,
        micro_batch=2,
        accumulation=2,
        data_rank=0,
        data_degree=2,
        log_path=folder / log,
        epoch=3,
    )


class Slow(BatchReader):
    """Tells which steps were read, takes its time, and counts how many threads read at once."""

    seconds = 0.0
    failing = 0

    def read(self, step: int) -> StepData:
        if not hasattr(self, "done"):
            self.done: list[int] = []
            self.threads: set[str] = set()
        self.threads.add(threading.current_thread().name)
        if step == self.failing:
            raise StoreDamaged("00000.tokens", 0, "changed")
        time.sleep(self.seconds)
        self.done.append(step)
        return super().read(step)


def test_the_batches_and_the_log_are_those_of_reading_step_by_step(tmp_path: Path) -> None:
    plain, ahead = (
        a_reader(tmp_path, "plain.jsonl"),
        Prefetch(a_reader(tmp_path, "ahead.jsonl"), last_step=STEPS),
    )
    for step in range(1, STEPS + 1):
        expected, found = plain.step(step), ahead.step(step)
        for one, other in zip(expected, found, strict=True):
            assert torch.equal(one.input_ids, other.input_ids)
            assert torch.equal(one.labels, other.labels)
            assert torch.equal(one.document_ids, other.document_ids)
            assert torch.equal(one.position_ids, other.position_ids)
        assert (tmp_path / "ahead.jsonl").read_bytes() == (tmp_path / "plain.jsonl").read_bytes()
    ahead.close()
    assert [line["step"] for line in read_log(tmp_path / "ahead.jsonl")] == list(range(1, STEPS + 1))


def test_a_step_that_was_read_ahead_and_not_trained_is_not_logged(tmp_path: Path) -> None:
    reader = a_reader(tmp_path, "log.jsonl", Slow)
    ahead = Prefetch(reader, last_step=STEPS)
    ahead.step(4)
    _until(lambda: len(reader.done) == 1 + DEPTH)
    ahead.close()
    assert [line["step"] for line in read_log(tmp_path / "log.jsonl")] == [4]


def test_no_more_than_the_depth_is_read_ahead_and_nothing_after_the_last_step(tmp_path: Path) -> None:
    reader = a_reader(tmp_path, "log.jsonl", Slow)
    ahead = Prefetch(reader, last_step=5)
    ahead.step(1)
    _until(lambda: len(reader.done) == 1 + DEPTH)
    time.sleep(0.05)
    assert reader.done == [1, 2, 3]
    for step in range(2, 6):
        ahead.step(step)
    ahead.close()
    assert reader.done == [1, 2, 3, 4, 5]
    assert len(reader.threads) == 1
    assert "MainThread" not in reader.threads


def test_what_is_read_while_a_step_is_trained_is_not_waited_for(tmp_path: Path) -> None:
    reader = a_reader(tmp_path, "log.jsonl", Slow)
    reader.seconds = 0.1
    ahead = Prefetch(reader, last_step=3)
    ahead.step(1)
    assert ahead.waited >= 0.1
    _until(lambda: reader.done == [1, 2, 3])
    ahead.step(2)
    assert ahead.waited < 0.05
    ahead.close()


def test_without_depth_no_thread_is_started(tmp_path: Path) -> None:
    reader = a_reader(tmp_path, "log.jsonl", Slow)
    reader.seconds = 0.02
    ahead = Prefetch(reader, last_step=3, depth=0)
    ahead.step(1)
    assert (reader.threads, ahead.waited >= 0.02) == ({"MainThread"}, True)
    ahead.close()


def test_another_step_than_the_next_is_read_anew(tmp_path: Path) -> None:
    plain, ahead = (
        a_reader(tmp_path, "plain.jsonl"),
        Prefetch(a_reader(tmp_path, "log.jsonl"), last_step=STEPS),
    )
    for step in (3, 4, 2, 9, 1):
        assert torch.equal(ahead.step(step)[0].input_ids, plain.step(step)[0].input_ids)
    ahead.close()
    assert [line["step"] for line in read_log(tmp_path / "log.jsonl")] == [3, 4, 2, 9, 1]


def test_an_error_is_raised_by_the_step_that_it_belongs_to(tmp_path: Path) -> None:
    reader = a_reader(tmp_path, "log.jsonl", Slow)
    reader.failing = 3
    ahead = Prefetch(reader, last_step=STEPS)
    ahead.step(1)
    ahead.step(2)
    with pytest.raises(StoreDamaged, match=r"00000.tokens: byte 0"):
        ahead.step(3)
    ahead.close()
    assert [line["step"] for line in read_log(tmp_path / "log.jsonl")] == [1, 2]


def _until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
