"""The learning rate of every schedule, against numbers known in closed form, and phases that do not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainer.config import read_config
from trainer.errors import ConfigError
from trainer.schedule import Schedule, schedule_of

GOLDEN = Path(__file__).parent.parent / "golden" / "resolved-spec.json"


def a_schedule(name: str, **changes: Any) -> Schedule:
    plain = Schedule(name=name, peak=1.0, minimum=0.1, warmup_steps=2, decay_steps=0, total_steps=10)
    return replace(plain, **changes)


def schedule_from(**schedule: Any) -> Schedule:
    """The golden run of 300 steps with this schedule block."""
    training = json.loads(GOLDEN.read_text())
    training["training"]["schedule"] = {"warmupPermille": 50, "minLearningRatePermille": 100, **schedule}
    return schedule_of(read_config(training).training)


def refusal(**schedule: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        schedule_from(**schedule)
    return str(caught.value)


def test_the_cosine_warms_up_linearly_and_follows_half_a_cosine() -> None:
    schedule = a_schedule("Cosine", peak=1e-4, minimum=0.0, warmup_steps=1000, total_steps=500_000)
    expected = {0: 0.0, 1: 1e-7, 500: 5e-5, 1000: 1e-4, 125_750: 8.5355e-5, 250_500: 5e-5, 500_000: 0.0}
    for step, rate in expected.items():
        assert schedule.learning_rate(step) == pytest.approx(rate, rel=1e-5, abs=1e-12)


def test_wsd_stays_at_the_peak_and_falls_linearly_over_its_last_steps() -> None:
    schedule = a_schedule(
        "WSD", peak=2e-4, minimum=0.0, warmup_steps=2000, decay_steps=522_000, total_steps=4_720_000
    )
    expected = {
        0: 0.0,
        1000: 1e-4,
        2000: 2e-4,
        3_000_000: 2e-4,
        4_198_000: 2e-4,
        4_459_000: 1e-4,
        4_720_000: 0.0,
    }
    for step, rate in expected.items():
        assert schedule.learning_rate(step) == pytest.approx(rate, rel=1e-5, abs=1e-12)


def test_a_longer_wsd_run_begins_as_the_shorter_one_and_a_longer_cosine_does_not() -> None:
    for name, same in (("WSD", True), ("Cosine", False)):
        short = a_schedule(name, decay_steps=20 if name == "WSD" else 0, total_steps=100)
        long = replace(short, total_steps=200)
        rates = [(short.learning_rate(step), long.learning_rate(step)) for step in range(1, 81)]
        assert all(a == b for a, b in rates) is same, name


def test_linear_falls_evenly_from_the_end_of_the_warm_up_to_the_minimum() -> None:
    schedule = a_schedule("Linear", warmup_steps=2, total_steps=10)
    assert [schedule.learning_rate(step) for step in (1, 2, 6, 10)] == pytest.approx([0.5, 1.0, 0.55, 0.1])


def test_constant_stays_at_the_peak() -> None:
    schedule = a_schedule("Constant")
    assert [schedule.learning_rate(step) for step in (1, 2, 3, 10)] == [0.5, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("name", ["Cosine", "Linear", "WSD", "Constant"])
def test_the_first_update_is_not_wasted_and_the_peak_is_reached_at_the_end_of_the_warm_up(name: str) -> None:
    schedule = a_schedule(name, decay_steps=3 if name == "WSD" else 0)
    assert schedule.learning_rate(1) == 0.5
    assert schedule.learning_rate(2) == 1.0
    assert schedule.learning_rate(10) == pytest.approx(1.0 if name == "Constant" else 0.1)


def test_a_run_that_is_all_warm_up_ends_at_the_peak() -> None:
    assert a_schedule("Cosine", warmup_steps=10).learning_rate(10) == 1.0
    assert a_schedule("Linear", warmup_steps=0, total_steps=1).learning_rate(1) == pytest.approx(0.1)


def test_phases_are_thousandths_of_the_run_or_steps() -> None:
    assert schedule_from(name="Cosine").warmup_steps == 15
    assert schedule_from(name="Linear", warmupSteps=7).warmup_steps == 7
    wsd = schedule_from(name="WSD")
    assert (wsd.warmup_steps, wsd.decay_steps, wsd.total_steps) == (15, 30, 300)
    assert schedule_from(name="WSD", decayPermille=200).decay_steps == 60
    assert schedule_from(name="WSD", decaySteps=11).decay_steps == 11


def test_a_warm_up_longer_than_the_run_is_refused_with_the_equation() -> None:
    message = refusal(name="Cosine", warmupSteps=301)
    assert message.startswith("spec.training.schedule.warmupSteps: 301")
    assert "a warm-up of 301 steps is longer than the run of 300 steps" in message
    assert "at most 300 steps" in message
    assert "longer than the run" in refusal(name="Cosine", warmupPermille=1100)


def test_a_warm_up_and_decay_that_exceed_the_run_are_refused_with_the_equation() -> None:
    message = refusal(name="WSD", warmupPermille=400, decayPermille=700)
    assert message.startswith("spec.training.schedule.decayPermille: 700")
    assert "warm-up 120 + decay 210 = 330 steps, but the run has 300" in message
    assert "decay over at most 180 steps" in message


def test_a_decay_of_a_schedule_that_has_none_is_refused() -> None:
    assert "Linear has no decay of its own" in refusal(name="Linear", decaySteps=3)
    assert "use one of: Cosine, Linear, WSD, Constant" in refusal(name="Polynomial")
