"""Corrections learn what groups have in common, shrink what few say, and leave strangers alone."""

from __future__ import annotations

import math

import pytest

from trainingrun.planner.cost.calibration import NONE, Level, Observation, learn

LEVELS = (Level(("source",), 0.1), Level(("source", "model"), 0.1))


def seen(source: str, model: str, log_ratio: float) -> Observation:
    return Observation({"source": source, "model": model}, log_ratio)


def test_many_measurements_of_a_group_are_believed() -> None:
    found = learn([seen("a", f"m{index}", 0.2) for index in range(40)], LEVELS)
    assert found.logarithm({"source": "a", "model": "new"}) == pytest.approx(0.2, abs=0.03)
    assert found.factor({"source": "a", "model": "m1"}) == pytest.approx(math.exp(0.2), rel=0.02)


def test_one_measurement_is_believed_less_than_many() -> None:
    one = learn([seen("a", "m", 0.2)], LEVELS[:1]).logarithm({"source": "a"})
    many = learn([seen("a", "m", 0.2)] * 20, LEVELS[:1]).logarithm({"source": "a"})
    assert 0 < one < many < 0.2


def test_groups_that_nobody_measured_are_not_corrected() -> None:
    found = learn([seen("a", "m", 0.3)], LEVELS)
    assert found.factor({"source": "b", "model": "m"}) == 1.0
    assert NONE.factor({"source": "a"}) == 1.0


def test_an_outlier_counts_as_one_that_is_a_little_off() -> None:
    told = [seen("a", "m", 0.0)] * 9
    wild = learn([*told, seen("a", "m", 3.0)], LEVELS[:1]).logarithm({"source": "a"})
    assert 0 < wild < 0.05


def test_levels_share_out_what_they_have_in_common() -> None:
    found = learn(
        [seen("a", "slow", 0.3)] * 10 + [seen("a", "usual", 0.1)] * 10 + [seen("a", "third", 0.1)] * 10,
        LEVELS,
    )
    assert found.logarithm({"source": "a", "model": "slow"}) == pytest.approx(0.3, abs=0.02)
    assert found.logarithm({"source": "a", "model": "usual"}) == pytest.approx(0.1, abs=0.02)
    assert 0.1 < found.logarithm({"source": "a", "model": "new"}) < 0.25


def test_learning_is_deterministic() -> None:
    told = [seen("a", "m", 0.1), seen("b", "m", -0.2), seen("a", "n", 0.05)]
    assert learn(told, LEVELS) == learn(told, LEVELS)
