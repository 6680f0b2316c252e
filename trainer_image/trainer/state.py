"""The training state under names that do not depend on how the model is cut.

`tensors()` gives `model.<name>`, `optim.<name>.exp_avg` and `optim.<name>.exp_avg_sq`, where <name> is
transformers' name of the parameter; they are this rank's live tensors, and restoring fills them in place.
`scalars()` is the rest, as JSON. There is nothing else to restore: the data order and the learning rate
follow from the step, and random numbers from (seed, step, rank).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from trainer.optim import Optimizer
from trainer.step import StepResult


@dataclass
class TrainingState:
    optimizer: Optimizer
    step: int = 0  # steps done
    samples: int = 0  # sequences read, of the run
    tokens: int = 0  # that weighed, of the run
    loss: float = 0.0  # of `step`
    learning_rate: float = 0.0  # of `step`

    def advance(self, result: StepResult, *, learning_rate: float, samples: int) -> None:
        """One step more is done, whether or not it changed the weights."""
        self.step += 1
        self.samples += samples
        self.tokens += result.tokens
        self.loss = result.loss
        self.learning_rate = learning_rate

    def tensors(self) -> dict[str, torch.Tensor]:
        weights = {f"model.{p.name}": p.cut for p in self.optimizer.parameters}
        moments = {f"optim.{name}": moment for name, moment in self.optimizer.moments().items()}
        return weights | moments

    def scalars(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "samples": self.samples,
            "tokens": self.tokens,
            "updates": self.optimizer.updates,
            "loss": self.loss,
            "learningRate": self.learning_rate,
        }

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self.step = int(scalars["step"])
        self.samples = int(scalars["samples"])
        self.tokens = int(scalars["tokens"])
        self.loss = float(scalars["loss"])
        self.learning_rate = float(scalars["learningRate"])
        self.optimizer.updates = int(scalars["updates"])
