"""The flat state under the names by which checkpoints know it, in the shape of `trainer.optim.Optimizer`.

`flat.<group>` are the trained weights of a group of parameters and `flat.<group>.<moment>` its moments, each a whole of
which every rank has an equal part. Who restores them fills this rank's part in place; `refresh` hands it on to the
modules. Random weights and weights from a folder are written into the same places, by the parameters' names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.distributed.tensor import DTensor, Shard

from trainer.checkpoint.flat import FlatPlace
from trainer.deepspeed_engine.flat import Flat
from trainer.mesh import Axes
from trainer.optim.adamw import MOMENTS
from trainer.parameters import Parameter

Whole = Callable[[str, tuple[int, ...]], torch.Tensor]  # (name, shape) -> the whole parameter


class FlatOptimizer:
    def __init__(
        self,
        flat: Flat,
        states: dict[torch.Tensor, dict[str, torch.Tensor]],
        axes: Axes,
        places: Mapping[str, FlatPlace],
        shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        """`states`: of the update rule, by master. They are made here, so that a state of any step has the same
        tensors.
        """
        self._flat = flat
        self._axes = axes
        self._places = places
        self._shapes = shapes
        self._states = states
        self._masters = {f"flat.{number}": master for number, master in enumerate(flat.masters())}
        for master in self._masters.values():
            moments = {moment: torch.zeros_like(master, requires_grad=False) for moment in MOMENTS}
            states[master] = {"step": torch.zeros((), dtype=torch.float32), **moments}
        self.parameters = [Parameter(name, self._cut(m), m) for name, m in self._masters.items()]  # type: ignore[arg-type]

    def moments(self) -> dict[str, torch.Tensor]:
        return {
            f"{name}.{moment}": self._cut(self._states[master][moment])
            for name, master in self._masters.items()
            for moment in MOMENTS
        }

    @property
    def updates(self) -> int:
        return int(next(iter(self._states.values()))["step"])

    @updates.setter
    def updates(self, count: int) -> None:
        for state in self._states.values():
            state["step"].fill_(float(count))

    def refresh(self) -> None:
        self._flat.refresh()

    @torch.no_grad()
    def fill(self, whole: Whole) -> None:
        """Write this rank's part of each parameter. What pads a group becomes 0."""
        for master in self._masters.values():
            master.zero_()
        for name, place in self._places.items():
            master = self._masters[place.item]
            begin = self._axes.data_rank * master.numel()
            shape = self._shapes[name]
            elements = torch.Size(shape).numel()
            runs = list(place.runs_within(elements, begin, begin + master.numel()))
            if not runs:
                continue
            flat = whole(name, shape).reshape(-1)
            for first, at, length in runs:
                master[at - begin : at - begin + length].copy_(flat[first : first + length])

    def _cut(self, part: torch.Tensor) -> torch.Tensor:
        part = part.detach()
        if self._axes.mesh is None:
            return part
        return DTensor.from_local(part, self._axes.submesh("shard"), [Shard(0)], run_check=False)
