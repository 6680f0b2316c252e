"""Initial weights that do not depend on how the model is cut.

Each parameter is drawn as a whole, by a generator seeded with the run's seed and the parameter's name, and
each rank keeps its shard: every parallel layout starts from the same bits, and FP64 starts from the numbers
of FP32. The distributions are those of transformers' Llama: normal(0, initializer_range), ones for norms,
zeros for biases.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from trainer.parameters import Parameter, local


def initial_tensor(name: str, shape: torch.Size, *, seed: int, deviation: float) -> torch.Tensor:
    """The whole initial parameter `name` in float32."""
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    if name.endswith(".bias"):
        return torch.zeros(shape)
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return torch.empty(shape).normal_(0.0, deviation, generator=generator)


@torch.no_grad()
def fill_initial(parameters: Iterable[Parameter], *, seed: int, deviation: float) -> None:
    """Write the initial weights into this rank's parameters. No communication."""
    for parameter in parameters:
        cut = parameter.cut
        whole = initial_tensor(parameter.name, cut.shape, seed=seed, deviation=deviation).to(cut.dtype)
        if isinstance(cut, DTensor):
            whole = local(distribute_tensor(whole, cut.device_mesh, cut.placements, src_data_rank=None))
        local(cut).copy_(whole)
