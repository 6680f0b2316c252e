"""Initial weights that do not depend on how the model is cut.

Each parameter is drawn as a whole, by a generator seeded with the run's seed and the parameter's name, and
each rank keeps its shard: every parallel layout starts from the same bits, and FP64 starts from the numbers
of FP32. The distributions are those of transformers: normal(0, initializer_range), ones for norms (zeros where a
family's norms are centred), zeros for biases, and what the family's table says.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable

import torch
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PretrainedConfig

from trainer.architecture import family_of
from trainer.families import is_norm
from trainer.parameters import Parameter, local


def initial_tensor(name: str, shape: tuple[int, ...], config: PretrainedConfig, *, seed: int) -> torch.Tensor:
    """The whole initial parameter `name` in float32."""
    family = family_of(config)
    if is_norm(name):
        return torch.zeros(shape) if family.centred_norms else torch.ones(shape)
    if name.endswith(".bias"):
        return torch.zeros(shape)
    deviation = config.initializer_range
    if name.endswith(tuple(f".{one}" for one in family.scaled_residuals)):
        deviation /= math.sqrt(2 * config.num_hidden_layers)
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return torch.empty(shape).normal_(0.0, deviation, generator=generator)


@torch.no_grad()
def fill_initial(parameters: Iterable[Parameter], config: PretrainedConfig, *, seed: int) -> None:
    """Write the initial weights of a model of this config into this rank's parameters. No communication."""
    for parameter in parameters:
        cut = parameter.cut
        whole = initial_tensor(parameter.name, tuple(cut.shape), config, seed=seed).to(cut.dtype)
        if isinstance(cut, DTensor):
            whole = local(distribute_tensor(whole, cut.device_mesh, cut.placements, src_data_rank=None))
        local(cut).copy_(whole)
