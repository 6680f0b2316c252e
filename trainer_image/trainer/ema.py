"""The exponential moving average of the trained weights, as this rank holds them.

It starts as the initial weights and moves by (1 - decay) of the difference after each update; skipped steps do not
move it. Averages are cut like their parameters and in their full precision, and are saved and restored as
`ema.<name>`. Parameters that are frozen have none. `swapped_in` trains nothing: it lends the averages to the modules,
for an evaluation, and puts the very bits back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from trainer.parameters import Parameter, cut_like, local


class Ema:
    def __init__(self, parameters: Iterable[Parameter], decay: float) -> None:
        self._decay = decay
        self._parameters = [parameter for parameter in parameters if parameter.live.requires_grad]
        self._weights = [local(parameter.cut) for parameter in self._parameters]
        self._averages = [torch.empty_like(weight) for weight in self._weights]

    @torch.no_grad()
    def start(self) -> None:
        """From the weights as they are now."""
        torch._foreach_copy_(self._averages, self._weights)

    @torch.no_grad()
    def update(self) -> None:
        torch._foreach_lerp_(self._averages, self._weights, 1.0 - self._decay)

    def tensors(self) -> dict[str, torch.Tensor]:
        """`ema.<name>`, live."""
        return {
            f"ema.{parameter.name}": cut_like(parameter.cut, average)
            for parameter, average in zip(self._parameters, self._averages, strict=True)
        }

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """The modules compute with the averages in here."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for parameter, weight, average in zip(self._parameters, self._weights, self._averages, strict=True):
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)
            parameter.refresh()
