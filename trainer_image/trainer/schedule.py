"""The learning rate as a function of the global step alone.

Steps count from 1: the update of step s uses `learning_rate(s)`. Warm-up is linear, s / W of the peak for s
<= W, so that the first update is not a wasted one and step W runs at the peak; then half a cosine from the
peak at step W down to the minimum at the last step N. Because only the global step counts, a resume, a
resize or a skipped update changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainer.config import TrainerConfig


@dataclass(frozen=True)
class Schedule:
    peak: float
    minimum: float
    warmup_steps: int
    total_steps: int
    cosine: bool = True

    def learning_rate(self, step: int) -> float:
        if step < self.warmup_steps:
            return self.peak * step / self.warmup_steps
        if not self.cosine or self.total_steps <= self.warmup_steps:
            return self.peak
        done = min(1.0, (step - self.warmup_steps) / (self.total_steps - self.warmup_steps))
        return self.minimum + (self.peak - self.minimum) * 0.5 * (1.0 + math.cos(math.pi * done))


def schedule_of(config: TrainerConfig) -> Schedule:
    peak = config.training.optimizer.learning_rate
    return Schedule(
        peak=peak,
        minimum=peak * config.training.schedule.min_learning_rate_permille / 1000,
        warmup_steps=config.training.total_steps * config.training.schedule.warmup_permille // 1000,
        total_steps=config.training.total_steps,
        cosine=config.training.schedule.name == "Cosine",
    )
