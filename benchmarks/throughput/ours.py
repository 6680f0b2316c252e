"""Our trainer as a user gets it: a manifest, its planned layout, and the ranks that are forked from a warm server.

    python -m benchmarks.throughput.ours CASE CORPUS FOLDER PROCESSES [--split]        FOLDER in memory: snapshots too

Everything is at its default: memory snapshots at the interval that the trainer measures, durable checkpoints every ten
minutes, data read ahead, every read and every step logged. There is no agent beside the ranks, nobody dies here. With
--split the ranks also write how long forward and backward and the optimizer took in each step (`split.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks import lone_node
from benchmarks.throughput.cases import Case, named
from benchmarks.throughput.corpus import TOKENIZER
from benchmarks.throughput.recipe import (
    BETAS,
    CORES,
    EPSILON,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    STEPS,
    WARMUP_STEPS,
    WEIGHT_DECAY,
)
from trainingrun.api.load import parse, resolve
from trainingrun.planner.inputs import planner_inputs
from trainingrun.planner.search import plan
from trainingrun.protocol.records import Rung


def manifest(case: Case, corpus: Path, folder: Path, processes: int) -> dict[str, Any]:
    return {
        "apiVersion": "trainingrun.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": "bench"},
        "spec": {
            "task": "pretrain",
            "model": {
                "init": "Config",
                "config": case.config,
                "tokenizer": {"uri": (corpus / TOKENIZER).as_uri()},
            },
            "data": {
                "seed": 17,
                "sources": [{"name": "made", "uri": corpus.as_uri(), "format": "Tokens"}],
                "packing": case.packing,
            },
            "training": {
                "duration": {"steps": STEPS},
                "globalBatch": {"sequences": case.global_batch},
                "sequenceLength": case.sequence_length,
                "precision": "FP32",
                "optimizer": {
                    "name": "AdamW",
                    "learningRate": LEARNING_RATE,
                    "betas": list(BETAS),
                    "epsilon": EPSILON,
                    "weightDecay": WEIGHT_DECAY,
                    "maxGradNorm": MAX_GRAD_NORM,
                },
                "schedule": {
                    "name": "Cosine",
                    "warmupSteps": WARMUP_STEPS,
                    "minLearningRatePermille": 0,
                },
                "seed": 17,
            },
            "scale": {"minNodes": 1, "maxNodes": 1},
            "resources": {"perNode": {"cpu": CORES, "memory": "20Gi"}, "processesPerNode": processes},
            "checkpoint": {"location": {"uri": (folder / "checkpoints").as_uri()}},
            "output": {"format": "Safetensors", "uri": (folder / "model").as_uri()},
        },
    }


def planned(case: Case, corpus: Path, folder: Path, processes: int) -> tuple[dict[str, Any], Rung]:
    spec = resolve(parse(manifest(case, corpus, folder, processes), None), None)
    (rung,) = plan(*planner_inputs(spec)).rungs
    return spec, rung.rung


def main(case: Case, corpus: Path, folder: Path, processes: int, rank_module: str) -> int:
    spec, rung = planned(case, corpus, folder, processes)
    print(
        f"layout: replicate {rung.replicate} shard {rung.shard} tensor {rung.tensor} pipeline {rung.pipeline},"
        f" {rung.micro_batch} sequences x {rung.accumulation}",
        flush=True,
    )
    return lone_node.run(spec, rung, folder, rank_module)


if __name__ == "__main__":
    name, where, log_folder, count, *options = sys.argv[1:]
    module = "benchmarks.throughput.split" if "--split" in options else "trainer.rank"
    raise SystemExit(main(named(name), Path(where), Path(log_folder), int(count), module))
