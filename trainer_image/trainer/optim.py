"""AdamW over this rank's own part of each parameter.

The update is elementwise, so it works on local tensors that share the parameters' storage: no tensor
subclass is in the way, and any cut gives the same numbers. Weight decay is for matrices; norm weights and
biases are never decayed. Moments exist from the start, so that a checkpoint of any step has the same
tensors.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from trainer.config import OptimizerConfig
from trainer.parameters import Parameter, local

MOMENTS = ("exp_avg", "exp_avg_sq")


def decays(name: str) -> bool:
    """Whether the parameter with this transformers name is subject to weight decay."""
    return name.endswith(".weight") and not name.endswith("norm.weight")


class Optimizer:
    """`parameters` of this rank, each exactly once, in a fixed order."""

    def __init__(self, parameters: Iterable[Parameter], config: OptimizerConfig) -> None:
        self.parameters = list(parameters)
        self._locals = {p.name: nn.Parameter(local(p.cut)) for p in self.parameters}
        groups = [
            {
                "params": [p for name, p in self._locals.items() if decays(name)],
                "weight_decay": config.weight_decay,
            },
            {"params": [p for name, p in self._locals.items() if not decays(name)], "weight_decay": 0.0},
        ]
        self._adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.learning_rate,
            betas=config.betas,
            eps=config.epsilon,
            fused=True,
        )
        for parameter in self._locals.values():
            state = {moment: torch.zeros_like(parameter, requires_grad=False) for moment in MOMENTS}
            self._adamw.state[parameter] = {"step": torch.zeros((), dtype=torch.float32), **state}

    @property
    def groups(self) -> list[tuple[float, set[str]]]:
        """(weight decay, names) of each group."""
        names = {id(parameter): name for name, parameter in self._locals.items()}
        return [(g["weight_decay"], {names[id(p)] for p in g["params"]}) for g in self._adamw.param_groups]

    @torch.no_grad()
    def update(self, gradients: list[torch.Tensor], *, scale: float, learning_rate: float) -> None:
        """One update by `scale` x `gradients` (local, in the order of the parameters; they are
        overwritten).
        """
        torch._foreach_mul_(gradients, scale)
        for parameter, gradient in zip(self._locals.values(), gradients, strict=True):
            parameter.grad = gradient
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)

    @property
    def updates(self) -> int:
        """Updates done so far, for the bias correction; skipped steps do not count."""
        return int(next(iter(self._adamw.state.values()))["step"])

    @updates.setter
    def updates(self, count: int) -> None:
        for state in self._adamw.state.values():
            state["step"].fill_(float(count))

    def moments(self) -> dict[str, torch.Tensor]:
        """`<name>.exp_avg`, `<name>.exp_avg_sq`: cut like their parameters, sharing storage with the
        optimizer.
        """
        tensors = {}
        for parameter in self.parameters:
            state = self._adamw.state[self._locals[parameter.name]]
            for moment in MOMENTS:
                tensors[f"{parameter.name}.{moment}"] = _cut_like(parameter.cut, state[moment])
        return tensors


def _cut_like(parameter: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    if not isinstance(parameter, DTensor):
        return part
    return DTensor.from_local(
        part,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
