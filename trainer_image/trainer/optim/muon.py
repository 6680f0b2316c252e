"""Muon: momentum, orthogonalised, for the hidden matrices; AdamW for embeddings, head, norms and biases.

Orthogonalising needs the whole matrix: each rank gathers it over tensor and shard, computes the same, and keeps its
part. The update is scaled by 0.2 sqrt(longer side), which gives it the root mean square of AdamW's, so that one
learning rate and one weight decay serve both. Momentum is 0.95 with Nesterov; `betas` are those of the AdamW part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from trainer.config import OptimizerConfig
from trainer.optim.adamw import AdamW
from trainer.optim.groups import as_matrices, is_hidden_matrix
from trainer.parameters import Parameter, cut_like, gathered, local, own_part

MOMENTUM = 0.95
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_SMALLEST_NORM = 1e-7
_RMS = 0.2  # of AdamW's updates


class Muon:
    def __init__(self, parameters: Sequence[Parameter], config: OptimizerConfig) -> None:
        self._weight_decay = config.weight_decay
        self._hidden = [index for index, p in enumerate(parameters) if is_hidden_matrix(p)]
        self._others = [index for index, p in enumerate(parameters) if not is_hidden_matrix(p)]
        self._parameters = parameters
        self._momenta = [torch.zeros_like(local(parameters[index].cut)) for index in self._hidden]
        self._adamw = AdamW([parameters[index] for index in self._others], config) if self._others else None
        self._updates = 0

    def update(self, gradients: Sequence[torch.Tensor], learning_rate: float) -> None:
        for index, momentum in zip(self._hidden, self._momenta, strict=True):
            name, cut, gradient = self._parameters[index].name, self._parameters[index].cut, gradients[index]
            momentum.lerp_(gradient, 1.0 - MOMENTUM)
            whole = gathered(gradient.lerp_(momentum, MOMENTUM), cut)
            matrices = as_matrices(name, whole)
            longer = max(matrices.shape[-2:])
            as_matrices(name, whole).copy_(orthogonalised(matrices))
            step = own_part(whole, cut)
            own = local(cut)
            own.mul_(1.0 - learning_rate * self._weight_decay)
            own.add_(step, alpha=-learning_rate * _RMS * math.sqrt(longer))
        if self._adamw is not None:
            self._adamw.update([gradients[index] for index in self._others], learning_rate)
        self._updates += 1

    @property
    def updates(self) -> int:
        return self._updates

    @updates.setter
    def updates(self, count: int) -> None:
        self._updates = count
        if self._adamw is not None:
            self._adamw.updates = count

    def states(self) -> dict[str, torch.Tensor]:
        momenta = {
            f"{self._parameters[index].name}.momentum": cut_like(self._parameters[index].cut, momentum)
            for index, momentum in zip(self._hidden, self._momenta, strict=True)
        }
        return momenta | (self._adamw.states() if self._adamw is not None else {})


def orthogonalised(matrix: torch.Tensor) -> torch.Tensor:
    """Nearly U V^T of each matrix U S V^T in the last two dims, by Newton and Schulz; its singular values come to lie
    between about 0.7 and 1.2.
    """
    a, b, c = _COEFFICIENTS
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if tall else matrix
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=_SMALLEST_NORM)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.mT if tall else x
