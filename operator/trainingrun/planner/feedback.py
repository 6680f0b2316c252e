"""What measurements of runs teach about predictions: factors of memory and time, for one engine, model and hardware.

A measurement is one size of a run as it really went, beside what was predicted for that very plan. Factors are
learned as `cost.calibration` has it: by engine and hardware, then by model, then by plan, each shrunk by how little
was measured. Three rules make them safe: a measurement of few steps, of another planner or far beyond belief
teaches nothing; and memory that was less than predicted is believed only so far, for not every rank may have been
at its fullest. Pure; called by the CLI and by the controller.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from trainingrun.planner.cost.calibration import Level, Observation, learn
from trainingrun.planner.types import ModelShape, NodeShape, TrainingShape
from trainingrun.planner.weighing import Factors
from trainingrun.protocol.records import Rung

LEAST_STEPS = 5  # that a median must be of; the first steps of an epoch are slower
ENOUGH_STEPS = 50
FARTHEST = 4.0  # times more or less than predicted: something else was going on, or somebody else was
LEAST_MEMORY = 0.85  # less is not believed

_GROUPS = (("engine", "hardware"), ("engine", "hardware", "model"), ("engine", "hardware", "model", "layout"))
_TIME = tuple(Level(fields, width) for fields, width in zip(_GROUPS, (0.15, 0.15, 0.05), strict=True))
_MEMORY = tuple(Level(fields, width) for fields, width in zip(_GROUPS, (0.05, 0.05, 0.03), strict=True))
_TIME_NOISE, _MEMORY_NOISE = 0.03, 0.01
_ROUNDS = 400  # one measurement settles how much of it is the hardware's, the model's and the plan's


@dataclass(frozen=True)
class Names:
    """What a measurement is of. Equal names mean equal predictions but for the batch and the number of nodes."""

    engine: str
    hardware: str
    model: str
    layout: str = ""  # of a rung; "": of any

    @classmethod
    def of(
        cls, model: ModelShape, training: TrainingShape, node: NodeShape, rung: Rung | None = None
    ) -> Names:
        return cls(
            engine=training.engine,
            hardware=f"{node.name or node.device} x {node.processes}",
            model=_model_name(model, training),
            layout="" if rung is None else layout_name(rung),
        )


def _model_name(model: ModelShape, training: TrainingShape) -> str:
    experts = f" experts {model.experts.count}" if model.experts else ""
    return (
        f"{model.model_type} {model.layers} x {model.hidden_size} vocabulary {model.vocabulary_size}{experts} "
        f"sequence {training.sequence_length} bytes {training.parameter_bytes}/{training.activation_bytes}"
    )


def layout_name(rung: Rung) -> str:
    """What decides memory and time of a rank, beside the model: not how many copies there are."""
    zero = f" ZeRO {rung.zero_stage}" if rung.zero_stage else ""
    sequence = " sequence-parallel" if rung.sequence_parallel else ""
    return (
        f"tensor {rung.tensor} context {rung.context} shard {rung.shard} pipeline {rung.pipeline} {rung.schedule} "
        f"micro-batch {rung.micro_batch} recompute {rung.activation_checkpointing}{sequence}{zero}"
    )


@dataclass(frozen=True)
class Measurement:
    """One size of a run: medians over its steps, the fullest of its ranks, and what was predicted."""

    names: Names
    planner_version: str
    nodes: int
    steps: int
    step_seconds: float
    predicted_step_seconds: float
    peak_bytes: int = 0  # that the allocator handed out, without what is reserved beside it; 0: not measured
    predicted_peak_bytes: int = 0

    def time_ratio(self) -> float | None:
        """Measured over predicted; None where it teaches nothing."""
        if self.steps < LEAST_STEPS:
            return None
        return _believable(self.step_seconds, self.predicted_step_seconds)

    def memory_ratio(self) -> float | None:
        return None if self.steps < LEAST_STEPS else _believable(self.peak_bytes, self.predicted_peak_bytes)


def _believable(measured: float, predicted: float) -> float | None:
    if not (measured > 0 and predicted > 0 and math.isfinite(measured) and math.isfinite(predicted)):
        return None
    ratio = measured / predicted
    return ratio if 1 / FARTHEST <= ratio <= FARTHEST else None


def factors_of(
    measurements: Iterable[Measurement], names: Names, *, planner_version: str | None = None
) -> Factors:
    """What to multiply predictions for `names` with. `planner_version`: of who predicts now; measurements beside
    predictions of another are of no use. None: any.
    """
    known = [one for one in measurements if planner_version is None or one.planner_version == planner_version]
    asked = asdict(names)
    times = [_observed(one, ratio) for one in known if (ratio := one.time_ratio()) is not None]
    peaks = [_observed(one, ratio) for one in known if (ratio := one.memory_ratio()) is not None]
    return Factors(
        memory=max(LEAST_MEMORY, _factor(peaks, _MEMORY, _MEMORY_NOISE, asked)),
        time=_factor(times, _TIME, _TIME_NOISE, asked),
    )


def _observed(measurement: Measurement, ratio: float) -> Observation:
    weight = min(1.0, max(measurement.steps, 1) / ENOUGH_STEPS)
    return Observation(asdict(measurement.names), math.log(ratio), weight)


def _factor(
    observations: list[Observation], levels: tuple[Level, ...], noise: float, names: Mapping[str, str]
) -> float:
    if not observations:
        return 1.0
    # All are of one run or of a few: what is far off by all of them is no outlier.
    found = learn(observations, levels, noise=noise, far=math.log(FARTHEST), rounds=_ROUNDS)
    return found.factor(names)
