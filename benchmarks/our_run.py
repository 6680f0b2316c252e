"""The run of ours that both recovery benchmarks measure: its manifest, and the step log that its ranks write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.scenarios.line import Line
from tests.scenarios.manifests import small_manifest

from benchmarks.torchrun_elastic import Workload

WORKLOAD = Workload(
    config={
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "vocab_size": 512,
    },
    global_batch=16,
    sequence_length=128,
    checkpoint_every=20,
)


def bench_manifest(folder: Path) -> dict[str, Any]:
    """An endless run with the workload's model and batch that no number of faults ends; its files are in `folder`."""
    return small_manifest(
        folder,
        name="bench",
        model__config={key: value for key, value in WORKLOAD.config.items() if key != "vocab_size"},
        model__tokenizer={"train": {"vocabularySize": WORKLOAD.config["vocab_size"]}},
        training__duration={"steps": 1_000_000},
        training__globalBatch={"sequences": WORKLOAD.global_batch},
        training__sequenceLength=WORKLOAD.sequence_length,
        scale__growHoldSeconds=0,
        recovery={"limits": [], "noProgressLimit": 10},
    )


class Metrics:
    """The trainer's own step logs of a line: what was done when, as the ranks wrote it."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def rows(self) -> list[dict[str, Any]]:
        return [
            json.loads(text)
            for path in self._line.files("metrics-e*.jsonl")
            for text in path.read_text().split("\n")[:-1]
        ]

    def first_step_of(self, epoch: int) -> dict[str, Any] | None:
        mine = [row for row in self.rows() if row["epoch"] == epoch and "at" in row]
        return min(mine, key=lambda row: row["step"], default=None)

    def last_step_of(self, epoch: int) -> int:
        return max((row["step"] for row in self.rows() if row["epoch"] == epoch and "at" in row), default=0)
