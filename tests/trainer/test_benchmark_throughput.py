"""The arithmetic behind the throughput benchmark: which steps count, a turn's rate, and when a bar is missed."""

from __future__ import annotations

import pytest
from benchmarks.page import with_section
from benchmarks.throughput.cases import CASES, OURS
from benchmarks.throughput.rows import Row, Share, page, rows_of, told
from benchmarks.throughput.timing import Rates, Step, Turn, rates, ratio, whole_steps


def steps_at(*times: float, tokens: int = 100) -> list[Step]:
    return [Step(at, tokens) for at in times]


def test_a_step_that_began_before_its_turn_does_not_count() -> None:
    assert whole_steps(steps_at(9.0, 10.5, 11.0, 11.5), Turn(10.0, 12.0)) == [(0.5, 100), (0.5, 100)]


def test_a_step_that_ended_after_its_turn_does_not_count() -> None:
    assert whole_steps(steps_at(10.0, 11.0, 12.5), Turn(10.0, 12.0)) == [(1.0, 100)]


def test_a_snapshot_is_not_a_part_of_the_step_after_it() -> None:
    steps = [Step(10.0, 100), Step(11.0, 100, snapshot_seconds=0.5), Step(12.5, 100)]
    assert whole_steps(steps, Turn(10.0, 14.0)) == [(1.0, 100), (1.0, 100)]


def test_even_steps_count_by_their_median_and_pay_for_snapshots() -> None:
    steps = steps_at(10.0, 11.0, 12.0, 19.0)
    assert rates(steps, [Turn(10.0, 20.0)], even=True).by_turn == (100.0,)
    assert rates(steps, [Turn(10.0, 20.0)], even=True, stall_seconds=0.25).by_turn == (80.0,)


def test_uneven_steps_count_by_their_sum() -> None:
    steps = [Step(10.0, 0), Step(11.0, 50), Step(14.0, 350)]
    assert rates(steps, [Turn(10.0, 20.0)], even=False).by_turn == (100.0,)


def test_a_turn_without_a_whole_step_is_an_error() -> None:
    with pytest.raises(ValueError, match="no whole step"):
        rates(steps_at(1.0, 2.0), [Turn(5.0, 6.0)], even=True)


def test_the_ratio_is_of_medians_and_its_range_of_pairs() -> None:
    found = ratio(Rates((100.0, 120.0, 80.0), 3), Rates((100.0, 60.0, 160.0), 3))
    assert (found.of_medians, found.least, found.most) == (1.0, 0.5, 2.0)


def test_a_bar_is_missed_below_it_and_only_where_it_counts() -> None:
    tiny = CASES[0]
    slow, fast = Rates((100.0,), 1), Rates((101.0,), 1)
    (held,) = rows_of(tiny, 1, "one process", slow, {"HF Trainer": fast}, held=True)
    (free,) = rows_of(tiny, 4, "replicate 4", slow, {"HF Trainer": fast}, held=False)
    assert not held.met and told(held).startswith("MISSED")
    assert free.met and free.bar is None


def test_every_case_measures_ours_and_whatever_it_has_a_bar_for() -> None:
    for case in CASES:
        assert case.contestants[0] == OURS
        assert set(case.bars) <= set(case.contestants[1:])


def test_what_is_outside_of_a_step_is_the_rest_of_it() -> None:
    share = Share("100M", 1, 2.0, {"forwardBackward": 1.5, "gradientSum": 0.1, "optimizer": 0.3}, 0.03)
    assert share.overhead == pytest.approx(0.05)
    assert not share.met


def test_the_page_says_what_was_missed() -> None:
    row = Row("tiny", 1, "one process", "HF Trainer", 100.0, 101.0, 0.990, 0.9, 1.1, 5, 1.1)
    share = Share("100M", 1, 2.0, {"forwardBackward": 1.5, "gradientSum": 0.1, "optimizer": 0.39}, 0.03)
    text = page([row], [share], cores=2)
    assert "| 0.990 | 0.900 to 1.100 | ≥ 1.1 | **missed** |" in text
    assert "| 0.5% | ≤ 3% | met |" in text


def test_a_section_is_replaced_and_the_rest_of_the_page_stays() -> None:
    text = "# A\n<!-- begin one -->\nold\n<!-- end one -->\nrest\n"
    assert with_section(text, "one", "new\n") == "# A\n<!-- begin one -->\nnew\n<!-- end one -->\nrest\n"
    with pytest.raises(ValueError, match="no marks"):
        with_section(text, "two", "new")
