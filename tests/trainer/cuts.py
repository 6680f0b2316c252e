"""States cut in real ways (FSDP2, tensor parallel, pipeline) whose right content is known, for checkpoint
tests.

`model.*` are a stage's live parameters and `optim.*` moments cut like them, under names that no cut changes.
Every whole tensor is a function of its name and a version, so any restore can be compared bit by bit.
"""

from __future__ import annotations

import hashlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from trainer.checkpoint import durable
from trainer.checkpoint.restore import from_durable, from_snapshots
from trainer.checkpoint.snapshot import SnapshotWriter, files_of

LAYERS = 4
UID = "uid-1"


@dataclass(frozen=True)
class Cut:
    pipeline: int = 1
    replicate: int = 1
    shard: int = 1
    tensor: int = 1

    @property
    def layout(self) -> tuple[int, int, int]:
        return (self.pipeline, self.shard, self.tensor)

    def piece(self, rank: int) -> tuple[int, int, int]:
        block, tensor = divmod(rank, self.tensor)
        return (block // self.shard % self.pipeline, block % self.shard, tensor)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(9, 14, bias=False)  # 14 over tensor 2 and shard 2 or 4 is uneven
        self.down = nn.Linear(14, 9, bias=False)
        self.norm = nn.Parameter(torch.zeros(9))


def whole(name: str, shape: torch.Size, version: int) -> torch.Tensor:
    digest = hashlib.sha256(f"{name}/{version}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return torch.randn(shape, generator=generator)


def state(rank: int, cut: Cut) -> dict[str, torch.Tensor]:
    """Tensors of zeros, cut."""
    here = cut.piece(rank)[0]
    per_stage = LAYERS // cut.pipeline
    layers = {str(number): Layer() for number in range(here * per_stage, (here + 1) * per_stage)}
    stage = nn.ModuleDict(layers)
    if cut != Cut():
        shape = (cut.replicate, cut.pipeline, cut.shard, cut.tensor)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "pipeline", "shard", "tensor"))
        for layer in layers.values():
            if cut.tensor > 1:
                parallelize_module(
                    layer, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()}
                )
            if cut.shard > 1:
                fully_shard(layer, mesh=mesh["shard"])
    tensors: dict[str, torch.Tensor] = {}
    for name, parameter in stage.named_parameters():
        weight = parameter.detach()
        weight.zero_()
        tensors[f"model.{name}"] = weight
        for moment in ("exp_avg", "exp_avg_sq"):
            tensors[f"optim.{name}.{moment}"] = torch.zeros_like(weight)
    return tensors


def fill(tensors: dict[str, torch.Tensor], version: int) -> None:
    for name, tensor in tensors.items():
        value = whole(name, tensor.shape, version)
        if isinstance(tensor, DTensor):
            cut = distribute_tensor(value, tensor.device_mesh, tensor.placements, src_data_rank=None)
            tensor.to_local().copy_(cut.to_local())
        else:
            tensor.copy_(value)


def wrong(tensors: dict[str, torch.Tensor], version: int) -> list[str]:
    """Names of tensors that are not, bit by bit, those of `version`. Collective."""
    found = []
    for name, tensor in tensors.items():
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if not torch.equal(full, whole(name, tensor.shape, version)):
            found.append(name)
    return found


def save(location: Path, tensors: dict[str, torch.Tensor], *, step: int, epoch: int = 1, **other: Any) -> str:
    """Save version `step`."""
    fill(tensors, step)
    options: dict[str, Any] = {
        "parent": "",
        "run_uid": UID,
        "keep_last": 3,
        "plan": {"data": 2},
        "versions": {"torch": "x"},
    }
    return durable.save(
        location, step=step, epoch=epoch, tensors=tensors, scalars=scalars(step), **(options | other)
    )


def scalars(step: int) -> dict[str, Any]:
    return {"step": step, "samples": 12 * step, "tokens": 100 * step, "updates": step, "learningRate": 0.1}


# What ranks of a world do ----------------------------------------------------------------


def save_cuts(rank: int, saves: list[tuple[Cut, int]], location: Path, memory: Path) -> list[str]:
    """Save each (cut, step) durably and in memory."""
    saved = []
    for cut, step in saves:
        tensors = state(rank, cut)
        saved.append(save(location, tensors, step=step))
        writer = SnapshotWriter(
            memory / str(step),
            epoch=1,
            local_rank=rank,
            layout=cut.layout,
            piece=cut.piece(rank),
            tensors=tensors,
        )
        writer.write(step, scalars(step))
    return saved


def restore_cuts(
    rank: int, cuts: list[Cut], saved: list[tuple[str, int]], location: Path, memory: Path
) -> list[tuple[str, list[str]]]:
    """(what, names that differ) of every restore at every cut."""
    found = []
    for cut in cuts:
        for name, step in saved:
            tensors = state(rank, cut)
            got = from_durable(location, name, tensors)
            assert got == scalars(step)
            found.append((f"{cut} from {name}", wrong(tensors, step)))
            tensors = state(rank, cut)
            assert from_snapshots(files_of(memory / str(step), 1, step), 1, step, tensors) == scalars(step)
            found.append((f"{cut} from memory {step}", wrong(tensors, step)))
    return found


def save_until_killed(rank: int, cut: Cut, location: Path, step: int) -> None:
    """Save step after step; ends only by a kill."""
    tensors = state(rank, cut)
    while True:
        step += 1
        save(location, tensors, step=step, keep_last=2)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
