"""The training state under names that do not depend on how the model is cut.

`tensors()` gives `model.<name>`, `optim.<name>.<state>` and, with an average, `ema.<name>`, where <name> is
transformers' name of the parameter; they are this rank's live tensors, and restoring fills them in place.
`scalars()` is the rest, as JSON. There is nothing else to restore: the data order and the learning rate
follow from the step and the steps that overflowed, and random numbers from (seed, step, rank).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from trainer.ema import Ema
from trainer.optim import Optimizer
from trainer.precision import LossScale
from trainer.step import StepResult


@dataclass
class TrainingState:
    optimizer: Optimizer
    ema: Ema | None = None
    scale: LossScale = field(default_factory=lambda: LossScale(on=False))
    step: int = 0  # steps done
    skipped: int = 0  # of them, those whose gradient overflowed: the learning rate waits for them
    samples: int = 0  # sequences read, of the run
    tokens: int = 0  # that weighed, of the run
    loss: float = 0.0  # of `step`
    learning_rate: float = 0.0  # of `step`
    data: str = ""  # fingerprint of what the steps were trained on; "" when it was not written down

    @property
    def schedule_step(self) -> int:
        """The step that the next one is to the learning rate."""
        return self.step + 1 - self.skipped

    def advance(self, result: StepResult, *, learning_rate: float, samples: int) -> None:
        """One step more is done, whether or not it changed the weights."""
        self.step += 1
        self.skipped += result.overflowed
        self.samples += samples
        self.tokens += result.tokens
        self.loss = result.loss
        self.learning_rate = learning_rate
        if self.ema is not None and result.updated:
            self.ema.update()

    def extras(self, result: StepResult) -> dict[str, Any]:
        """What the log of steps has beside loss and norm, where the run has it."""
        found: dict[str, Any] = {"zLoss": result.z_loss} if result.z_loss else {}
        if self.scale.on:
            found |= {"lossScale": self.scale.value, "overflowed": result.overflowed}
        return found

    def filled(self, *, initial: bool) -> None:
        """The tensors have got their values: initial weights, or those of a restore point."""
        self.optimizer.refresh()
        if initial and self.ema is not None:
            self.ema.start()

    def tensors(self) -> dict[str, torch.Tensor]:
        weights = {f"model.{p.name}": p.cut for p in self.optimizer.parameters}
        moments = {f"optim.{name}": moment for name, moment in self.optimizer.moments().items()}
        return weights | moments | (self.ema.tensors() if self.ema is not None else {})

    def scalars(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "skipped": self.skipped,
            "samples": self.samples,
            "tokens": self.tokens,
            "updates": self.optimizer.updates,
            "loss": self.loss,
            "learningRate": self.learning_rate,
            "data": self.data,
            **self.scale.scalars(),
        }

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self.step = int(scalars["step"])
        self.skipped = int(scalars.get("skipped", 0))
        self.samples = int(scalars["samples"])
        self.tokens = int(scalars["tokens"])
        self.loss = float(scalars["loss"])
        self.learning_rate = float(scalars["learningRate"])
        self.optimizer.updates = int(scalars["updates"])
        self.scale.load_scalars(scalars)
