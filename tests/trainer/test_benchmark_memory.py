"""The arithmetic behind the memory benchmark: what is whose part, and when a prediction is beyond its bar."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.memory.__main__ import predicted
from benchmarks.memory.measured import status
from benchmarks.memory.rows import MEBI, Predicted, Real, Row, page

from trainingrun.planner.types import MemoryBill

REAL = Real(base=100 * MEBI, peak=1000 * MEBI, snapshots=300 * MEBI, libraries=50 * MEBI)
PREDICTED = Predicted(process=200 * MEBI, snapshots=300 * MEBI, training=500 * MEBI)
ROW = Row("30M", "FP32", "None", "one process, 4 x 2", REAL, PREDICTED)


def test_what_is_neither_process_nor_snapshots_is_training() -> None:
    assert REAL.training == 550 * MEBI
    assert ROW.training_ratio == 1.1


def test_a_bill_is_divided_into_process_snapshots_and_the_rest_and_nothing_is_lost() -> None:
    bill = MemoryBill(
        weights=10,
        gradients=20,
        optimizer=30,
        activations=40,
        logits=50,
        buffers=60,
        reserved=70,
        snapshots=90,
    )
    found = predicted(bill)
    assert found == Predicted(process=70, snapshots=60, training=240)
    assert found.total == bill.total


def test_more_than_the_margin_above_the_prediction_misses_the_bar() -> None:
    assert ROW.met
    assert not replace(ROW, real=replace(REAL, peak=1041 * MEBI)).met


def test_a_prediction_that_is_far_too_high_misses_the_bar() -> None:
    assert not replace(ROW, real=replace(REAL, peak=660 * MEBI)).met


def test_the_page_has_real_beside_predicted() -> None:
    assert "| 150 / 200 | 300 / 300 | 550 / 500 | 1.10 | 1,000 / 1,000 | 1.00 | ok |" in page([ROW])


def test_the_memory_of_this_process_is_read_in_bytes() -> None:
    found = status()
    assert found["VmHWM"] >= found["RssAnon"] > 1 << 20
