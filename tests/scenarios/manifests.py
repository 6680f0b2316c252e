"""The run that the scenarios train: a tiny Llama on text of the standard library, in seconds."""

from __future__ import annotations

import copy
import shutil
import sysconfig
from pathlib import Path
from typing import Any

from tests.scenarios.lines import uri_of

_SMALL = {
    "apiVersion": "trainingrun.dev/v1alpha1",
    "kind": "TrainingRun",
    "metadata": {"name": "scenario"},
    "spec": {
        "task": "pretrain",
        "model": {
            "init": "Config",
            "config": {
                "model_type": "llama",
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "max_position_embeddings": 64,
                "tie_word_embeddings": False,
            },
            "tokenizer": {"train": {"vocabularySize": 384}},
        },
        "data": {"seed": 17, "sources": [], "packing": "Concatenate"},
        "training": {
            "duration": {"steps": 60},
            "globalBatch": {"sequences": 8},
            "sequenceLength": 32,
            "precision": "FP32",
            "optimizer": {"name": "AdamW", "learningRate": 0.002, "maxGradNorm": 1.0},
            # Constant: a run of fewer steps then follows a longer one step by step.
            "schedule": {"name": "Cosine", "warmupPermille": 0, "minLearningRatePermille": 1000},
            "seed": 17,
        },
        "scale": {"minNodes": 1, "maxNodes": 2, "growHoldSeconds": 1},
        "resources": {"perNode": {"cpu": "1", "memory": "4Gi"}, "processesPerNode": 2},
        "checkpoint": {"location": {"uri": ""}, "durable": {"intervalSteps": 25, "keepLast": 3}},
        "output": {"format": "Safetensors", "uri": ""},
    },
}


def small_manifest(folder: Path, name: str = "scenario", **changes: Any) -> dict[str, Any]:
    """A run that trains in seconds: a tiny Llama on text that is written to `folder`.

    `changes` replace values by their path below spec, `__` for a dot: `training__duration={"steps": 20}`.
    """
    manifest: dict[str, Any] = copy.deepcopy(_SMALL)
    manifest["metadata"]["name"] = name
    spec = manifest["spec"]
    text = folder / "text"
    text.mkdir(parents=True, exist_ok=True)
    # Real text: on a made-up one the loss soon stands on a plateau, where rounding grows without bound.
    for source in ("argparse.py", "dataclasses.py", "subprocess.py", "typing.py"):
        shutil.copy(Path(sysconfig.get_path("stdlib")) / source, text / source)
    spec["data"]["sources"] = [{"name": "text", "uri": uri_of(text), "format": "Text"}]
    spec["checkpoint"]["location"]["uri"] = uri_of(folder / "checkpoints" / name)
    spec["output"]["uri"] = uri_of(folder / "models" / name)
    for path, value in changes.items():
        *parents, last = path.split("__")
        holder = spec
        for parent in parents:
            holder = holder.setdefault(parent, {})
        holder[last] = value
    return manifest
