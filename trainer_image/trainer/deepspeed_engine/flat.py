"""Where the trained state is in DeepSpeed's buffers.

Every ZeRO optimizer keeps one flat buffer for each group of parameters, of which each rank has an equal part: ZeRO 1
and 2 lay the parameters one after another and cut that, ZeRO 3 cuts each parameter and lays the parts one after
another. A `FlatPlace` describes both, so that whoever has all parts finds each parameter again without DeepSpeed: the
export does. The attributes of DeepSpeed that are read here are its own, not promised to anybody; the version is pinned.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from trainer.checkpoint.flat import FlatPlace
from trainer.deepspeed_engine.library import (
    BF16_Optimizer,
    DeepSpeedZeroOptimizer,
    DeepSpeedZeroOptimizer_Stage3,
)


class Flat(Protocol):
    """A ZeRO optimizer, seen by its flat groups."""

    def masters(self) -> list[torch.Tensor]:
        """This rank's part of the trained weights of each group, in full precision; live."""

    def gradients(self) -> list[torch.Tensor]:
        """This rank's parts of the gradients of the global batch, between the last backward and the update."""

    def places(self) -> list[list[tuple[torch.Tensor, int, int, int]]]:
        """For each group, its parameters as (parameter, start, piece, stride): see `FlatPlace`."""

    def refresh(self) -> None:
        """Renew what the modules compute with from the masters. Collective."""


def flat_of(optimizer: Any) -> Flat:
    if isinstance(optimizer, DeepSpeedZeroOptimizer_Stage3):
        return _Cut(optimizer)
    if isinstance(optimizer, BF16_Optimizer):
        return _WithBf16Gradients(optimizer)
    if isinstance(optimizer, DeepSpeedZeroOptimizer):
        return _InOrder(optimizer)
    raise TypeError(f"{type(optimizer).__name__} is not one of DeepSpeed's ZeRO optimizers")


def places_by_name(flat: Flat, names: Mapping[torch.Tensor, str]) -> dict[str, FlatPlace]:
    return {
        names[parameter]: FlatPlace(f"flat.{group}", start, piece, stride)
        for group, parameters in enumerate(flat.places())
        for parameter, start, piece, stride in parameters
    }


def _one_after_another(parameters: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, int, int, int]]:
    sizes = [parameter.numel() for parameter in parameters]
    starts = itertools.accumulate(sizes, initial=0)
    return [(p, start, size, size) for p, start, size in zip(parameters, starts, sizes, strict=False)]


@dataclass(frozen=True)
class _InOrder:
    """ZeRO 1 and 2."""

    optimizer: Any

    def masters(self) -> list[torch.Tensor]:
        return list(self.optimizer.single_partition_of_fp32_groups)

    def gradients(self) -> list[torch.Tensor]:
        if self.optimizer.cpu_offload:
            return [master.grad for master in self.masters() if master.grad is not None]
        parts = (self.optimizer.averaged_gradients[group] for group in range(len(self.masters())))
        return [gradient for part in parts for gradient in part]

    def places(self) -> list[list[tuple[torch.Tensor, int, int, int]]]:
        return [_one_after_another(parameters) for parameters in self.optimizer.bit16_groups]

    def refresh(self) -> None:
        self.optimizer.update_lp_params()


@dataclass(frozen=True)
class _WithBf16Gradients:
    """ZeRO 1 in BF16, which adds gradients up in FP32 beside those of the modules."""

    optimizer: Any

    def masters(self) -> list[torch.Tensor]:
        return list(self.optimizer.fp32_groups_flat_partition)

    def gradients(self) -> list[torch.Tensor]:
        return list(self.optimizer.fp32_groups_gradient_flat_partition)

    def places(self) -> list[list[tuple[torch.Tensor, int, int, int]]]:
        return [_one_after_another(parameters) for parameters in self.optimizer.bf16_groups]

    def refresh(self) -> None:
        self.optimizer.update_lp_params()


@dataclass(frozen=True)
class _Cut:
    """ZeRO 3."""

    optimizer: Any

    def masters(self) -> list[torch.Tensor]:
        return list(self.optimizer.fp32_partitioned_groups_flat)

    def gradients(self) -> list[torch.Tensor]:
        if self.optimizer.offload_optimizer:
            return [master.grad for master in self.masters() if master.grad is not None]
        parts = (self.optimizer.averaged_gradients[group] for group in range(len(self.masters())))
        return [gradient for part in parts for gradient in part]

    def places(self) -> list[list[tuple[torch.Tensor, int, int, int]]]:
        found = []
        for parameters, master in zip(self.optimizer.fp16_groups, self.masters(), strict=True):
            pieces = [parameter.partition_numel() for parameter in parameters]
            starts = itertools.accumulate(pieces, initial=0)
            found.append(
                [
                    (p, start, piece, master.numel())
                    for p, start, piece in zip(parameters, starts, pieces, strict=False)
                ]
            )
        return found

    def refresh(self) -> None:
        optimizer = self.optimizer
        for group in range(len(self.masters())):
            optimizer._reassign_or_swap_out_partitioned_parameters(group)
        kept = optimizer.persistent_parameters  # whole on each rank: renewed from the parts
        if kept:
            kept[0].partition(kept)
            kept[0].all_gather(kept)
