"""The learning rate as a function of the global step alone.

Steps count from 1: the update of step s uses `learning_rate(s)`. Warm-up is linear, s / W of the peak for s
<= W, so that the first update is not a wasted one and step W runs at the peak. Cosine and Linear then fall to
the minimum, which the last step N has. WSD stays at the peak until N - D and falls linearly over the last D
steps; before that its rates do not depend on N, so a longer run begins as a shorter one did. Constant stays at
the peak. Because only the step counts, a resume or a resize changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainer.config import TrainingConfig


@dataclass(frozen=True)
class Schedule:
    name: str  # Cosine | Linear | WSD | Constant
    peak: float
    minimum: float
    warmup_steps: int
    decay_steps: int  # WSD: the last ones of the run
    total_steps: int

    def learning_rate(self, step: int) -> float:
        if step < self.warmup_steps:
            return self.peak * step / self.warmup_steps
        return self.minimum + (self.peak - self.minimum) * self._height(step)

    def _height(self, step: int) -> float:
        """Where step stands between minimum (0) and peak (1) once it is warm."""
        if self.name == "Constant":
            return 1.0
        begins = self.total_steps - self.decay_steps if self.name == "WSD" else self.warmup_steps
        if step <= begins:
            return 1.0
        done = min(1.0, (step - begins) / (self.total_steps - begins)) if self.total_steps > begins else 1.0
        return 0.5 * (1.0 + math.cos(math.pi * done)) if self.name == "Cosine" else 1.0 - done


def schedule_of(training: TrainingConfig) -> Schedule:
    peak, schedule = training.optimizer.learning_rate, training.schedule
    return Schedule(
        name=schedule.name,
        peak=peak,
        minimum=peak * schedule.min_learning_rate_permille / 1000,
        warmup_steps=schedule.warmup_steps,
        decay_steps=schedule.decay_steps,
        total_steps=training.total_steps,
    )
