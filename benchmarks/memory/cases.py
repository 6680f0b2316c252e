"""What is measured: sizes, precisions and layouts, each planned as a user's run is. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STEPS = 6
SAVE_AFTER_STEPS = (
    2  # so that the copy which a checkpoint is written from is there while the last steps are trained
)

TINY = {
    "hidden_size": 96,
    "intermediate_size": 288,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
MIDDLE = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 8192,
}
LARGE = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "vocab_size": 32_000,
}


@dataclass(frozen=True)
class Case:
    name: str
    model: dict[str, Any]
    sequence_length: int = 256
    global_batch: int = 8
    precision: str = "FP32"
    processes: int = 1
    activations: str = "None"
    axes: dict[str, int] = field(default_factory=dict)

    def manifest(self, corpus: Path, tokenizer: Path, folder: Path) -> dict[str, Any]:
        config = {
            "model_type": "llama",
            "tie_word_embeddings": False,
            "max_position_embeddings": self.sequence_length,
            **self.model,
        }
        return {
            "apiVersion": "trainingrun.dev/v1alpha1",
            "kind": "TrainingRun",
            "metadata": {"name": "bench"},
            "spec": {
                "task": "pretrain",
                "model": {"init": "Config", "config": config, "tokenizer": {"uri": tokenizer.as_uri()}},
                "data": {
                    "seed": 17,
                    "sources": [{"name": "made", "uri": corpus.as_uri(), "format": "Tokens"}],
                    "packing": "Concatenate",
                },
                "training": {
                    "duration": {"steps": STEPS},
                    "globalBatch": {"sequences": self.global_batch},
                    "sequenceLength": self.sequence_length,
                    "precision": self.precision,
                    "optimizer": {"name": "AdamW", "learningRate": 3e-4},
                    "seed": 17,
                },
                "parallelism": {"axes": self.axes, "activationCheckpointing": self.activations},
                "scale": {"minNodes": 1, "maxNodes": 1},
                "resources": {"perNode": {"cpu": 2, "memory": "20Gi"}, "processesPerNode": self.processes},
                "checkpoint": {
                    "location": {"uri": (folder / "checkpoints").as_uri()},
                    "memory": {"intervalSteps": 1},
                    "durable": {"intervalSteps": SAVE_AFTER_STEPS, "keepLast": 1},
                },
                "output": {"format": "Safetensors", "uri": (folder / "model").as_uri()},
            },
        }


CASES = (
    Case("tiny", TINY),
    Case("30M", MIDDLE),
    Case("30M", MIDDLE, precision="BF16"),
    Case("30M", MIDDLE, activations="Full"),
    Case("30M", MIDDLE, processes=2),  # the planner shards it
    Case("30M", MIDDLE, processes=2, axes={"tensor": 2}),
    Case("30M", MIDDLE, processes=2, axes={"pipeline": 2}),
    Case("134M", LARGE, global_batch=4),
    Case("134M", LARGE, global_batch=4, precision="BF16", activations="Full"),
)
