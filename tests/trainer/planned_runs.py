"""300 random runs of small models that the planner has a plan for, the same ones each time. Without torch."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path
from typing import Any

from trainingrun.planner.errors import PlanError
from trainingrun.planner.inputs import planner_inputs
from trainingrun.planner.search import plan
from trainingrun.planner.types import ModelShape
from trainingrun.protocol.records import Rung

GOLDEN = Path(__file__).parent.parent / "golden" / "resolved-spec.json"
GPU = "NVIDIA-H100-80GB-HBM3"
PLANS = 300
MOST_RANKS = 64  # of a world that is built
FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma", "gpt2")


def a_run(seed: int) -> dict[str, Any]:
    """A resolved spec of a small model; the same for the same seed. Not each of them can be planned."""
    draw = random.Random(seed)
    spec: dict[str, Any] = json.loads(GOLDEN.read_text())
    kind = draw.choice(FAMILIES)
    heads = draw.choice([2, 4, 6, 8])
    config: dict[str, Any] = {
        "model_type": kind,
        "hidden_size": 16 * heads,
        "intermediate_size": draw.choice([96, 128, 192]),
        "num_hidden_layers": draw.choice([1, 2, 4, 6, 8]),
        "num_attention_heads": heads,
        "max_position_embeddings": 256,
        "vocab_size": draw.choice([250, 256, 1001]),
    }
    if kind != "gpt2":
        config["num_key_value_heads"] = draw.choice([one for one in (1, 2, 3, 4, 6, 8) if heads % one == 0])
        if kind != "qwen2":  # which has none of its own
            config["head_dim"] = 16
        config["tie_word_embeddings"] = draw.random() < 0.5
    spec["model"]["config"] = config
    training = spec["training"]
    training["sequenceLength"] = draw.choice([32, 64, 96])
    training["globalBatch"] = {"tokens": None, "sequences": draw.choice([4, 12, 16, 32, 64])}
    training["precision"] = draw.choice(["FP32", "FP32", "BF16", "FP64"])
    training["optimizer"]["name"] = draw.choice(["AdamW", "AdamW", "Lion", "Muon", "Adafactor", "AdamW8bit"])
    least = draw.choice([1, 1, 2, 3])
    spec["scale"] |= {"minNodes": least, "maxNodes": least + draw.choice([0, 1, 3])}
    accelerated = draw.random() < 0.3
    memory = draw.choice(["600Mi", "1Gi", "4Gi"])
    processes = draw.choice([1, 2, 4, 6, 8])
    spec["resources"] = {"perNode": {"cpu": "8", "memory": memory}, "processesPerNode": processes}
    if accelerated:
        spec["resources"] = {
            "perNode": {"cpu": "8", "memory": "900Gi", "nvidia.com/gpu": str(draw.choice([1, 2, 4, 8]))},
            "processesPerNode": None,
        }
    axes: dict[str, int | None] = {"tensor": None, "pipeline": None, "context": None}
    for axis in axes:
        if draw.random() < 0.35:
            axes[axis] = draw.choice([1, 2, 2, 4])
    spec["parallelism"] |= {
        "axes": axes,
        "pipelineSchedule": draw.choice(["Auto", "1F1B", "Interleaved1F1B", "ZBV"]),
        "sequenceParallel": draw.random() < 0.3,
        "activationCheckpointing": draw.choice(["Auto", "None", "Selective", "Full"]),
    }
    return spec


def on_cores(spec: dict[str, Any]) -> dict[str, Any]:
    """The same run without accelerators: this version of the trainer refuses those, but what is planned for them has to
    be built all the same.
    """
    resources = {"perNode": {"cpu": "8", "memory": "900Gi"}, "processesPerNode": 1}
    return {**spec, "resources": resources}


@functools.cache
def plans() -> tuple[tuple[int, dict[str, Any], ModelShape, Rung], ...]:
    """(seed, spec, model, rung) of runs that can be planned, on one of their useful sizes."""
    found: list[tuple[int, dict[str, Any], ModelShape, Rung]] = []
    seed = 0
    while len(found) < PLANS:
        seed += 1
        spec = a_run(seed)
        try:
            model, training, inventory = planner_inputs(spec, accelerator_name=GPU)
            path = plan(model, training, inventory)
        except PlanError:
            continue
        useful = [planned.rung for planned in path.rungs if planned.rung.useful]
        small = [rung for rung in useful if rung.world <= MOST_RANKS]
        if small:
            found.append((seed, spec, model, random.Random(seed).choice(small)))
    return tuple(found)
