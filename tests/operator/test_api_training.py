"""spec.training: schedules, precision, optimizers and overrides, and what of them does not fit together."""

from __future__ import annotations

from typing import Any

import pytest
from tests.operator.api_builders import BASE, manifest, only_error

from trainingrun.api.load import parse, resolve

SCHEDULE = "spec/training/schedule"


def training(*changes: tuple[str, Any]) -> dict[str, Any]:
    """The resolved spec.training of the base manifest with these changes."""
    block: dict[str, Any] = resolve(parse(manifest(*changes), BASE), BASE)["training"]
    return block


@pytest.mark.parametrize(
    "schedule",
    [
        {"name": "Cosine"},
        {"name": "Linear", "warmupSteps": 300},
        {"name": "Constant", "warmupPermille": 0},
        {"name": "WSD"},
        {"name": "WSD", "warmupPermille": 900},
        {"name": "WSD", "warmupSteps": 100, "decaySteps": 200},
    ],
    ids=str,
)
def test_a_schedule_that_fits_into_the_run_is_accepted(schedule: dict[str, Any]) -> None:
    assert training((SCHEDULE, schedule))["schedule"].items() >= schedule.items()


@pytest.mark.parametrize(
    ("schedule", "path", "message", "fix"),
    [
        (
            {"warmupSteps": 301},
            "spec.training.schedule.warmupSteps",
            "a warm-up of 301 steps is longer than the run of 300 steps",
            "use at most 300",
        ),
        (
            {"name": "WSD", "warmupPermille": 950},
            "spec.training.schedule.decayPermille",
            "warm-up 950 + decay 100 = 1050 thousandths, but the run has 1000",
            "decay over at most 50",
        ),
        (
            {"name": "WSD", "decaySteps": 290},
            "spec.training.schedule.decaySteps",
            "warm-up 15 + decay 290 = 305 steps, but the run has 300",
            "at most 285 steps",
        ),
        (
            {"name": "WSD", "decaySteps": 3, "decayPermille": 3},
            "spec.training.schedule.decaySteps",
            "decayPermille is set as well",
            "remove one",
        ),
        (
            {"name": "Linear", "decayPermille": 3},
            "spec.training.schedule.decayPermille",
            "Linear has no decay of its own",
            "use name WSD",
        ),
    ],
)
def test_a_schedule_that_does_not_fit_is_refused_with_the_equation(
    schedule: dict[str, Any], path: str, message: str, fix: str
) -> None:
    error = only_error((SCHEDULE, schedule))
    assert (error.path, error.message) == (path, message)
    assert fix in error.fix


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("spec/training/precision", ["BF16", "FP16", "FP32", "FP64"]),
        (
            "spec/training/optimizer",
            [{"name": n, "learningRate": 0.1} for n in ("AdamW", "AdamW8bit", "Lion", "Muon")],
        ),
        (
            "spec/training/overrides",
            [{"zLoss": 1e-4, "emaDecay": 0.999, "attention": "Eager", "compile": True}],
        ),
        ("spec/parallelism", [{"activationCheckpointing": m} for m in ("Auto", "None", "Selective", "Full")]),
    ],
)
def test_choices_are_accepted(path: str, values: list[Any]) -> None:
    for value in values:
        parse(manifest((path, value)), BASE)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("spec/training/precision", "FP8", "FP8 is not supported by this version"),
        (
            "spec/training/optimizer/name",
            "SGD",
            "expected AdamW or AdamW8bit or Lion or Muon or Adafactor, got the string 'SGD'",
        ),
        ("spec/training/overrides/zLoss", -1, "-1 is less than the minimum, 0"),
        ("spec/training/overrides/emaDecay", 1, "1 is more than the maximum, 0.99999"),
        ("spec/training/overrides/zloss", 1, "unknown field; did you mean zLoss?"),
        (
            "spec/training/overrides/attention",
            "Fast",
            "expected Auto or Sdpa or Eager or Flash, got the string 'Fast'",
        ),
        ("spec/training/overrides/compile", "maybe", "expected true or false, got the string 'maybe'"),
        (
            "spec/parallelism/activationCheckpointing",
            "Half",
            "expected Auto or None or Selective or Full, got",
        ),
    ],
)
def test_anything_else_is_refused(path: str, value: Any, message: str) -> None:
    error = only_error((path, value))
    assert error.path == path.replace("/", ".")
    assert error.message.startswith(message)
