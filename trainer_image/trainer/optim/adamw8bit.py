"""AdamW whose two moments are kept in 8 bits, block by block (Dettmers et al. 2022; see `codes.py`).

    m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2
    p <- (1 - lr wd) p - lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + epsilon)

The moments are widened to the weights' precision, renewed, used as they are, and only then rounded. What is most
sensitive keeps full moments: embeddings (a tied head is one) and tensors of fewer than 4096 elements, as transformers
asks it of bitsandbytes, and norms and biases of any size. Rounding to the nearest code has one weakness, here as there:
an element that shrinks by less than half of a code's width keeps its code until its block's largest element grows.

Every operation rounds once, so cutting a row anywhere changes no bit: torch's fused AdamW does not promise that. A
cut between rows never splits a block, one along the rows must fall between blocks, and is refused elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.distributed.tensor import DTensor

from trainer.config import OptimizerConfig
from trainer.errors import ConfigError
from trainer.optim.codes import Coded, blocks_in
from trainer.optim.groups import decays, is_embedding
from trainer.parameters import Parameter, cut_like, local
from trainingrun.protocol.eight_bits import SMALLEST, Row

WORKED_ON = 1 << 18  # elements whose moments are wide at once


class AdamW8bit:
    def __init__(self, parameters: Sequence[Parameter], config: OptimizerConfig) -> None:
        self.updates = 0
        self._betas, self._epsilon = config.betas, config.epsilon
        self._parameters = parameters
        self._decays = [config.weight_decay if decays(parameter) else 0.0 for parameter in parameters]
        self._moments = [_moments_of(parameter) for parameter in parameters]

    def update(self, gradients: Sequence[torch.Tensor], learning_rate: float) -> None:
        self.updates += 1
        for parameter, moments, gradient, decay in zip(
            self._parameters, self._moments, gradients, self._decays, strict=True
        ):
            own = _as_rows(local(parameter.cut))
            given = gradient.reshape(own.shape)
            each = max(1, WORKED_ON // max(1, own.shape[-1]))
            for start in range(0, own.shape[0], each):
                rows = slice(start, start + each)
                first, second = (moment.read(rows, own.dtype) for moment in moments)
                self._step(own[rows], given[rows], first, second, learning_rate, decay)
                for moment, renewed in zip(moments, (first, second), strict=True):
                    moment.write(rows, renewed)

    def _step(
        self,
        own: torch.Tensor,
        gradient: torch.Tensor,
        first: torch.Tensor,
        second: torch.Tensor,
        learning_rate: float,
        decay: float,
    ) -> None:
        """In place. Without fused multiply-adds, which vectors and what is left over of them may round differently."""
        one, two = self._betas
        first.mul_(one).add_(gradient.mul(1.0 - one))
        second.mul_(two).add_(gradient.mul_(gradient).mul_(1.0 - two))
        size = second.sqrt().div_(math.sqrt(1.0 - two**self.updates)).add_(self._epsilon)
        own.mul_(1.0 - learning_rate * decay)
        own.sub_(first.div(size).mul_(learning_rate / (1.0 - one**self.updates)))

    def states(self) -> dict[str, torch.Tensor]:
        """`exp_avg` and `exp_avg_sq`, each as `_codes` and `_scales` where it is in 8 bits."""
        found: dict[str, torch.Tensor] = {}
        for parameter, moments in zip(self._parameters, self._moments, strict=True):
            for moment, name in zip(moments, ("exp_avg", "exp_avg_sq"), strict=True):
                key = f"{parameter.name}.{name}"
                if isinstance(moment, Coded):
                    found[f"{key}_codes"] = cut_like(parameter.cut, moment.codes)
                    found[f"{key}_scales"] = _cut_by_blocks(parameter.cut, moment.scales)
                else:
                    found[key] = cut_like(parameter.cut, moment.tensor)
        return found


def in_eight_bits(parameter: Parameter) -> bool:
    """Decided by the whole parameter, so that every layout has the same state."""
    return parameter.cut.numel() >= SMALLEST and decays(parameter) and not is_embedding(parameter)


class _Full:
    """A moment in the weights' precision."""

    def __init__(self, like: torch.Tensor) -> None:
        self.tensor = torch.zeros_like(like)
        self._rows = _as_rows(self.tensor)

    def read(self, rows: slice, _: torch.dtype) -> torch.Tensor:
        return self._rows[rows]

    def write(self, rows: slice, numbers: torch.Tensor) -> None:
        """`read` gave no copy: it is written."""


def _moments_of(parameter: Parameter) -> tuple[Coded | _Full, Coded | _Full]:
    own = local(parameter.cut)
    if not in_eight_bits(parameter):
        return _Full(own), _Full(own)
    _check_cut(parameter)
    return Coded(own, signed=True), Coded(own, signed=False)


def _check_cut(parameter: Parameter) -> None:
    """The configuration is checked before a process starts; this is for a module that its table does not know."""
    cut = parameter.cut
    last = cut.dim() - 1
    for axis, placement in enumerate(cut.placements if isinstance(cut, DTensor) else ()):
        degree, row = cut.device_mesh.size(axis), Row(parameter.name, cut.shape[-1])
        if getattr(placement, "dim", None) == last and not row.whole_under(degree):
            raise ConfigError(
                "spec.training.optimizer.name",
                "AdamW8bit",
                row.problem(degree),
                "use AdamW, or spec.parallelism.axes.tensor 1",
            )


def _as_rows(tensor: torch.Tensor) -> torch.Tensor:
    """A view as a matrix; a vector is one row."""
    return tensor.view(-1, tensor.shape[-1]) if tensor.dim() > 1 else tensor.view(1, -1)


def _cut_by_blocks(cut: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """`scales`, of this rank, as a part of those of the whole parameter."""
    if not isinstance(cut, DTensor):
        return scales
    shape = torch.Size((*cut.shape[:-1], blocks_in(cut.shape[-1])))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(
        scales, cut.device_mesh, cut.placements, run_check=False, shape=shape, stride=stride
    )
