"""What the optimizer asks of an update rule. A rule decides the numbers of an update and owns its state; it never
talks to ranks but to gather a parameter that is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from trainer.config import OptimizerConfig
from trainer.parameters import Parameter


class Rule(Protocol):
    updates: int  # done so far; skipped steps do not count

    def __init__(self, parameters: Sequence[Parameter], config: OptimizerConfig) -> None: ...

    def update(self, gradients: Sequence[torch.Tensor], learning_rate: float) -> None:
        """Change the parameters; `gradients` are local, in the order of the parameters, and may be overwritten."""

    def states(self) -> dict[str, torch.Tensor]:
        """`<name>.<state>`: live tensors, a DTensor where the state is cut."""
