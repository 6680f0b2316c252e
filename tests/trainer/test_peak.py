"""What a rank says of the most memory that it held."""

from __future__ import annotations

import platform

import pytest

from trainer.peak import EVERY_STEPS, FIRST_STEP, PeakMeter, due, private_bytes

MIB = 1 << 20


def test_it_is_what_came_on_top_of_what_was_there_before_and_never_becomes_less() -> None:
    readings = iter([100 * MIB, 160 * MIB, 140 * MIB, 190 * MIB])
    meter = PeakMeter(kept=True, read=lambda: next(readings))
    assert [meter.peak_bytes() for _ in range(3)] == [60 * MIB, 60 * MIB, 90 * MIB]


def test_where_freed_memory_is_given_back_nothing_is_claimed() -> None:
    meter = PeakMeter(kept=False, read=lambda: 100 * MIB)
    assert meter.peak_bytes() == 0


@pytest.mark.parametrize("text", ["", "VmRSS:  12 kB\n", "RssAnon:  12 MB\n"])
def test_where_the_kernel_does_not_say_nothing_is_claimed(text: str) -> None:
    assert private_bytes(lambda: text) == 0
    assert PeakMeter(kept=True, read=lambda: 0).peak_bytes() == 0


def test_the_line_of_the_kernel_is_in_kib() -> None:
    assert private_bytes(lambda: "Name:\tx\nRssAnon:\t    2048 kB\nRssFile:\t1 kB\n") == 2 * MIB


@pytest.mark.skipif(platform.system() != "Linux", reason="read from /proc")
def test_memory_that_is_taken_is_seen() -> None:
    meter = PeakMeter(kept=True)
    taken = bytearray(b"x" * (32 * MIB))
    assert 24 * MIB < meter.peak_bytes() < 256 * MIB
    assert len(taken) == 32 * MIB


def test_ranks_compare_after_the_first_few_steps_and_then_now_and_again() -> None:
    assert [step for step in range(1, 2 * EVERY_STEPS + 1) if due(step)] == [
        FIRST_STEP,
        EVERY_STEPS,
        2 * EVERY_STEPS,
    ]
