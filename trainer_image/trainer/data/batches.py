"""The micro-batches that one data rank reads for a step, and the log of what it really read.

Step s (from 1) uses positions [(s-1)*G, s*G) of the run's samples whatever the sizes are, so a resize changes who
reads a sample and never which are read. Positions past G within a step are padding: labels -100, no weight.
Every read is logged before the batch is handed out, because a counter cannot prove what was trained on.
`read` may be called from another thread and ahead of time; only what is handed out is logged. Called by the train
loop, through `prefetch`.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainer.data.samples import Sample, Samples


@dataclass(frozen=True)
class MicroBatch:
    """All int64 [micro_batch, S]. `labels` are shifted already: labels[i, t] is the target at position t."""

    input_ids: torch.Tensor
    labels: torch.Tensor
    document_ids: torch.Tensor
    position_ids: torch.Tensor


@dataclass(frozen=True)
class StepData:
    """What was read for a step, and its line of the log ("" when this rank keeps none)."""

    step: int
    batches: list[MicroBatch]
    line: str


class BatchReader:
    def __init__(
        self,
        samples: Samples,
        *,
        global_batch: int,
        micro_batch: int,
        accumulation: int,
        data_rank: int,
        data_degree: int,
        log_path: Path | None,
        epoch: int,
    ) -> None:
        """`global_batch` and `micro_batch` count sequences; `epoch` is the run's, for the log only."""
        places = data_degree * accumulation * micro_batch
        if places < global_batch:
            raise ValueError(
                f"data {data_degree} x accumulation {accumulation} x micro-batch {micro_batch} = {places}"
                f" places, but the global batch is {global_batch} sequences"
            )
        if not 0 <= data_rank < data_degree:
            raise ValueError(f"data rank {data_rank} of {data_degree}")
        self._samples = samples
        self._global_batch = global_batch
        self._rows = micro_batch
        self._accumulation = accumulation
        self._rank = data_rank
        self._degree = data_degree
        self._epoch = epoch
        self._log: int | None = None
        if log_path is not None:
            log_path.parent.mkdir(parents=True, exist_ok=True)
            self._log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def step(self, step: int) -> list[MicroBatch]:
        """The `accumulation` micro-batches of this rank in step `step` (from 1)."""
        return self.hand_out(self.read(step))

    def read(self, step: int) -> StepData:
        """Reads, and changes nothing. Raises StoreDamaged, SourceAway."""
        if step < 1:
            raise ValueError(f"step {step}: steps count from 1")
        samples = self._samples.at((step - 1) * self._global_batch, self._global_batch)
        chosen = [self._positions(number) for number in range(self._accumulation)]
        batches = [self._batch([samples[position] for position in positions]) for positions in chosen]
        read = [(position, samples[position]) for positions in chosen for position in positions]
        return StepData(step, batches, "" if self._log is None else self._line(step, read))

    def hand_out(self, data: StepData) -> list[MicroBatch]:
        """Logs what was read, and gives it to be trained on."""
        if self._log is not None:
            # One write of the whole line: it is there, or it is not, whenever the rank is killed.
            os.write(self._log, data.line.encode())
        return data.batches

    def close(self) -> None:
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def _positions(self, number: int) -> list[int]:
        first = (number * self._degree + self._rank) * self._rows
        return list(range(first, min(first + self._rows, self._global_batch)))

    def _batch(self, samples: list[Sample]) -> MicroBatch:
        rows = self._samples.block(samples, self._rows)
        return MicroBatch(
            torch.from_numpy(rows.input_ids),
            torch.from_numpy(rows.labels),
            torch.from_numpy(rows.document_ids),
            torch.from_numpy(rows.position_ids),
        )

    def _line(self, step: int, read: list[tuple[int, Sample]]) -> str:
        line = {
            "epoch": self._epoch,
            "step": step,
            "rank": self._rank,
            "positions": [position for position, _ in read],
            "sources": [sample.source for _, sample in read],
            "ids": [sample.id for _, sample in read],
            "hash": [sample_hash(self._samples.logged(sample)) for _, sample in read],
        }
        return json.dumps(line) + "\n"


def sample_hash(tokens: np.ndarray) -> str:
    """Hash of a sample's tokens (as 4-byte little-endian numbers), for the log."""
    return hashlib.blake2b(tokens.astype("<u4").tobytes(), digest_size=16).hexdigest()


def read_log(path: Path) -> list[dict[str, Any]]:
    """Lines of a reader's log, oldest first. A last line that a full disk cut off is left out."""
    lines = path.read_text().split("\n")
    complete = lines[:-1]  # what follows the last line end is not a whole line
    return [json.loads(line) for line in complete]
