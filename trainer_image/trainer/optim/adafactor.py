"""Adafactor, as torch.optim.Adafactor has it: the second moment of a matrix as means of its rows and columns.

The step is relative: min(lr, 1 / sqrt(t)) times the weight's root mean square (at least 0.001), and an update of
larger root mean square than 1 is scaled down to it. All of that needs the whole matrix, so each rank gathers gradient
and weight over tensor and shard, computes the same, and keeps its part. Vectors keep their whole second moment.
Nothing here uses `betas`; `epsilon` is the smallest root of a second moment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from trainer.config import OptimizerConfig
from trainer.optim.groups import as_matrices, decays
from trainer.parameters import Parameter, gathered, local, own_part

_DECAY_POWER = -0.8
_SMALLEST_RMS = 1e-3
_LARGEST_UPDATE_RMS = 1.0


class Adafactor:
    def __init__(self, parameters: Sequence[Parameter], config: OptimizerConfig) -> None:
        self.updates = 0
        self._parameters = parameters
        self._epsilon = config.epsilon
        self._decays = [config.weight_decay if decays(parameter) else 0.0 for parameter in parameters]
        self._states = [_new_state(parameter) for parameter in parameters]

    def update(self, gradients: Sequence[torch.Tensor], learning_rate: float) -> None:
        self.updates += 1
        relative = min(learning_rate, 1.0 / math.sqrt(self.updates))
        forget = self.updates**_DECAY_POWER
        for parameter, state, part, decay in zip(
            self._parameters, self._states, gradients, self._decays, strict=True
        ):
            step = gathered(part, parameter.cut)
            size = max(_SMALLEST_RMS, _rms(gathered(local(parameter.cut), parameter.cut)))
            gradient = as_matrices(parameter.name, step)
            gradient.mul_(_second_moment(state, gradient, forget).clamp_(min=self._epsilon**2).rsqrt_())
            excess = max(1.0, _rms(step) / _LARGEST_UPDATE_RMS)
            own = local(parameter.cut)
            own.mul_(1.0 - learning_rate * decay)
            own.add_(own_part(step, parameter.cut), alpha=-size * relative / excess)

    def states(self) -> dict[str, torch.Tensor]:
        return {
            f"{parameter.name}.{name}": tensor
            for parameter, state in zip(self._parameters, self._states, strict=True)
            for name, tensor in state.items()
        }


def _new_state(parameter: Parameter) -> dict[str, torch.Tensor]:
    """Whole tensors: the same on each rank that holds a part of the parameter."""
    cut = parameter.cut
    shape = as_matrices(parameter.name, torch.empty(cut.shape, device="meta")).shape
    if len(shape) < 2:
        return {"variance": torch.zeros(shape, dtype=cut.dtype)}
    return {
        "row": torch.zeros((*shape[:-1], 1), dtype=cut.dtype),
        "column": torch.zeros((*shape[:-2], 1, shape[-1]), dtype=cut.dtype),
    }


def _second_moment(state: dict[str, torch.Tensor], gradient: torch.Tensor, forget: float) -> torch.Tensor:
    """The renewed estimate, of the gradient's shape."""
    squares = gradient.square()
    if "variance" in state:
        return state["variance"].lerp_(squares, forget).clone()
    row = state["row"].lerp_(squares.mean(dim=-1, keepdim=True), forget)
    column = state["column"].lerp_(squares.mean(dim=-2, keepdim=True), forget)
    smallest = torch.finfo(gradient.dtype).tiny
    return (row @ column) / row.mean(dim=-2, keepdim=True).clamp_(min=smallest)


def _rms(tensor: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor)) / math.sqrt(tensor.numel())
