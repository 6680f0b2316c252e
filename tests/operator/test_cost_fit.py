"""The rule that a plan fits, and the probability that it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.operator.cost_builders import a_workload

from trainingrun.planner.cost.fit import fits, margin, p_oom
from trainingrun.planner.cost.types import Bill

GIB = float(1 << 30)
WORK = a_workload()


def _bill(gib: float) -> Bill:
    return Bill("each rank", gib * GIB, 0, 0, 0, 0, 0, context=GIB, slack=20 * GIB)


def test_the_margin_is_a_gibibyte_or_four_percent() -> None:
    assert margin(10 * GIB) == GIB
    assert margin(50 * GIB) == 2 * GIB


def test_it_fits_with_margin_and_context_and_slack_does_not_count() -> None:
    machine = replace(WORK.machine, memory_bytes=int(53.1 * GIB))
    assert fits(_bill(50), machine)
    assert not fits(_bill(50.2), machine)
    assert not fits(_bill(50), machine, factor=1.01)


def test_the_probability_is_a_half_where_prediction_and_room_are_equal() -> None:
    machine = replace(WORK.machine, memory_bytes=int(51 * GIB))
    assert p_oom(_bill(50), machine, WORK.framework) == pytest.approx(0.5, abs=1e-6)


def test_the_probability_falls_with_the_distance_in_spreads() -> None:
    machine = replace(WORK.machine, memory_bytes=int(51 * GIB))
    sure = replace(WORK.framework, coefficients={"memory_spread": 0.02})
    rough = replace(WORK.framework, coefficients={"memory_spread": 0.2})
    assert p_oom(_bill(45), machine, sure) < 1e-6 < p_oom(_bill(45), machine, rough) < 0.5
    assert p_oom(_bill(60), machine, sure) > 0.999


def test_without_room_it_runs_out_for_sure() -> None:
    assert p_oom(_bill(1), replace(WORK.machine, memory_bytes=int(GIB / 2)), WORK.framework) == 1.0
    assert p_oom(_bill(0), WORK.machine, WORK.framework) == 0.0
