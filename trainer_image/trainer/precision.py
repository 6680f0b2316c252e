"""The number formats of a run, and the loss scale of FP16.

Half precision is for what the modules compute: weights, the sum of gradients, their reduction over data ranks and
the optimizer stay in FP32. FP16 has so little range that small gradients vanish, so the loss is multiplied by a scale
that is halved when a gradient overflows and doubled after many steps without; powers of two change no digit. A step
that overflowed is skipped: the weights stay, the data goes on, and the learning rate waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Precision:
    compute: torch.dtype  # of modules and activations
    master: torch.dtype  # of trained weights, gradients and optimizer
    scaled: bool = False  # the loss needs a scale

    @property
    def mixed(self) -> bool:
        return self.compute != self.master


PRECISIONS = {
    "FP64": Precision(torch.float64, torch.float64),
    "FP32": Precision(torch.float32, torch.float32),
    "BF16": Precision(torch.bfloat16, torch.float32),
    "FP16": Precision(torch.float16, torch.float32, scaled=True),
}


class LossScale:
    """Starts at 65536, as torch.amp.GradScaler does; always 1 when `on` is False."""

    GROWTH_STEPS = 2000  # without an overflow, until the scale is doubled
    LOWEST = 1.0

    def __init__(self, *, on: bool) -> None:
        self.on = on
        self.value = 65536.0 if on else 1.0
        self._good_steps = 0

    @property
    def exhausted(self) -> bool:
        """A smaller scale cannot help: what overflows is no small gradient's fault."""
        return self.value <= self.LOWEST

    def overflowed(self) -> None:
        self.value = max(self.LOWEST, self.value / 2)
        self._good_steps = 0

    def passed(self) -> None:
        """A step without an overflow."""
        if not self.on:
            return
        self._good_steps += 1
        if self._good_steps == self.GROWTH_STEPS:
            self.value *= 2
            self._good_steps = 0

    def scalars(self) -> dict[str, Any]:
        return {"lossScale": self.value, "goodSteps": self._good_steps} if self.on else {}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        if self.on and "lossScale" in scalars:
            self.value = float(scalars["lossScale"])
            self._good_steps = int(scalars["goodSteps"])
