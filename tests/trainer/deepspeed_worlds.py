"""The engine DeepSpeed on a small world, driven with the data and weights of `parity`."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from tests.trainer import parity, worlds
from tests.trainer.layouts import a_rung, trained, whole

from trainer.architecture import model_config
from trainer.checkpoint.flat import take
from trainer.config import TrainerConfig, read_config
from trainer.deepspeed_engine.settings import BUCKET_ELEMENTS
from trainer.engine import Engine
from trainer.mesh import build_axes
from trainingrun.protocol.records import Rung

_BUCKET = BUCKET_ELEMENTS
GOLDEN = Path(__file__).parent.parent / "golden" / "resolved-spec.json"


def preload() -> None:
    """Called while tests are collected, before a world is started: their server then loads DeepSpeed once for all."""
    worlds.PRELOAD = ("trainer.rank", "trainer.deepspeed_engine.engine")


@dataclass(frozen=True)
class Kind:
    """Which ZeRO, where, and in what precision."""

    stage: int
    offload: str = "None"
    precision: str = "FP32"
    world: int = 2
    micro_batch: int = 2
    activations: str = "None"
    bucket: int = 0  # elements; 0: as in a run, which is more than these models have

    def __str__(self) -> str:
        extra = f"recomputed {self.activations}, bucket {self.bucket}"
        return f"ZeRO {self.stage}, offload {self.offload}, {self.precision}, {extra}"

    def rung(self, global_batch: int = 8) -> Rung:
        plain = a_rung(
            shard=self.world,
            micro_batch=self.micro_batch,
            global_batch=global_batch,
            engine="DeepSpeed",
            zero_stage=self.stage,
        )
        return replace(plain, activation_checkpointing=self.activations)


class Seen(NamedTuple):
    outcome: parity.Outcome
    compilers: list[str]  # that the rank could have found
    built: list[str]  # files where extensions of torch are compiled


def a_spec(kind: Kind, model: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A resolved specification. `changes`: of the optimizer."""
    spec: dict[str, Any] = json.loads(GOLDEN.read_text())
    spec["model"] |= {"config": model, "tokenizer": {"uri": None, "train": None}}
    spec["training"] |= {
        "duration": {"tokens": None, "steps": 20},
        "globalBatch": {"tokens": None, "sequences": 8},
        "sequenceLength": parity.SEQUENCE,
        "precision": kind.precision,
    }
    optimizer = {
        "learningRate": 3e-3,
        "betas": [0.9, 0.95],
        "epsilon": 1e-8,
        "weightDecay": 0.1,
        "maxGradNorm": 1.0,
    }
    spec["training"]["optimizer"] |= optimizer | changes
    block = {"zeroStage": kind.stage, "offload": kind.offload}
    spec["parallelism"] |= {"engine": "DeepSpeed", "deepspeed": block}
    return spec


def a_config(kind: Kind, model: dict[str, Any], **changes: Any) -> TrainerConfig:
    return read_config(a_spec(kind, model, **changes))


def train_all(rank: int, kinds: list[Kind], recipe: parity.Recipe) -> list[Seen]:
    """One after another in the same processes, where nothing can be compiled."""
    folder = tempfile.mkdtemp()
    os.environ |= {
        "PATH": folder,
        "CXX": f"{folder}/none",
        "CC": f"{folder}/none",
        "TORCH_EXTENSIONS_DIR": folder,
    }
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    found = []
    for kind in kinds:
        outcome = train(rank, kind, recipe)
        compilers = [name for name in ("c++", "g++", "gcc", "clang++", "ninja") if shutil.which(name)]
        found.append(Seen(outcome, compilers, [str(path) for path in Path(folder).rglob("*")]))
    return found


def train(rank: int, kind: Kind, recipe: parity.Recipe) -> parity.Outcome:
    """What a rank saw; its weights are those of all ranks."""
    from trainer.deepspeed_engine import settings
    from trainer.deepspeed_engine.engine import build

    settings.BUCKET_ELEMENTS = kind.bucket or _BUCKET
    rung = kind.rung(recipe.global_batch)
    axes = build_axes(rung, rank)
    config = a_config(kind, recipe.model, maxGradNorm=recipe.max_grad_norm)
    engine = build(config, model_config(recipe.model, recipe.model["vocab_size"]), axes, rung)
    optimizer: Any = engine.state.optimizer
    optimizer.fill(lambda name, shape: recipe.weights[name])
    engine.state.filled(initial=True)
    losses, norms = trained(engine.runner, axes, rung, recipe)
    return parity.Outcome(losses, norms, gathered(engine, recipe))


def gathered(engine: Engine, recipe: parity.Recipe) -> dict[str, torch.Tensor]:
    """The trained weights, found in the flat state as the export finds them."""
    wholes = {parameter.name: whole(parameter.cut) for parameter in engine.state.optimizer.parameters}
    return {
        name: take(wholes[place.item], place, tuple(recipe.weights[name].shape)).clone()
        for name, place in engine.flat.items()
    }
