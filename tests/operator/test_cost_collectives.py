"""Sends against published curves and formulas; pipelines against the published shares of idle time."""

from __future__ import annotations

import pytest

from trainingrun.planner.cost.collectives import all_reduce, exchange, gather, group_link, transfer
from trainingrun.planner.cost.pipeline import idle_share, seconds
from trainingrun.planner.cost.types import Link
from trainingrun.planner.hardware.machine import machine

MIB = 1 << 20


@pytest.mark.parametrize(
    ("ranks", "mebibytes", "gigabytes_per_second", "off"),
    [
        (8, 1, 19.8, 0.15),
        (8, 16, 126.3, 0.15),
        (8, 64, 202.5, 0.15),
        (8, 1024, 229.4, 0.05),
        (2, 1, 23.7, 0.15),
        (2, 16, 127.2, 0.20),
        (4, 64, 185.1, 0.15),
    ],
)
def test_all_reduces_on_a100_follow_the_measured_curve(
    ranks: int, mebibytes: int, gigabytes_per_second: float, off: float
) -> None:
    """Bus bandwidth, github.com/VIA-Research/vTrain trace/a100."""
    link = group_link(machine("A100-SXM-80GB", 8), 1, ranks)
    size = mebibytes * MIB
    bus = 2 * (ranks - 1) / ranks * size / all_reduce(size, ranks, link)
    assert bus / 1e9 == pytest.approx(gigabytes_per_second, rel=off)


def test_a_message_of_the_half_size_gets_half_of_the_bandwidth() -> None:
    link = Link(100e9, 0.0, 8e6)
    assert gather(8e6 * 1e6, 2, link) == pytest.approx((4e12 + 8e6) / 100e9)
    assert transfer(8e6, machine("H100-SXM-80GB", 8), 1, 2) > 0


def test_an_all_reduce_is_a_scatter_and_a_gather_of_a_large_message() -> None:
    link = Link(100e9, 1e-6, 0.0)
    assert all_reduce(1e9, 8, link) == pytest.approx(2 * gather(1e9, 8, link))


def test_one_rank_sends_nothing() -> None:
    link = Link(1e9, 1.0, 1e9)
    assert gather(1e9, 1, link) == all_reduce(1e9, 1, link) == 0.0
    assert exchange(1e9, 1, machine("H100-SXM-80GB", 8), 1) == 0.0


def test_a_group_in_a_node_uses_the_link_inside_and_a_larger_one_the_network() -> None:
    h100 = machine("H100-SXM-80GB", 8)
    assert group_link(h100, 1, 8) == h100.inside
    # Every eighth rank: one of each node, with its own card.
    assert group_link(h100, 8, 4).bytes_per_second == h100.between.bytes_per_second
    # All ranks: eight cards together, more than one accelerator can take, or as much as they have.
    assert group_link(h100, 1, 16).bytes_per_second == pytest.approx(
        min(8 * h100.between.bytes_per_second, h100.inside.bytes_per_second)
    )


def test_a_domain_of_72_spans_nodes() -> None:
    gb200 = machine("GB200-NVL72-186GB", 4)
    assert group_link(gb200, 1, 64) == gb200.inside
    assert group_link(gb200, 1, 144) != gb200.inside


def test_an_exchange_inside_a_domain_beats_one_across_nodes() -> None:
    size = 100e6
    assert exchange(size, 32, machine("GB200-NVL72-186GB", 4), 1) < exchange(
        size, 32, machine("B200-SXM-180GB", 8), 1
    )


@pytest.mark.parametrize(
    ("schedule", "pipeline", "virtual", "micro_batches", "share"),
    [
        ("1F1B", 4, 1, 8, 3 / 8),
        ("GPipe", 4, 1, 8, 3 / 8),
        ("Interleaved1F1B", 4, 2, 8, 3 / 16),
        ("Interleaved1F1B", 8, 12, 64, 7 / (12 * 64)),
        ("ZBV", 4, 2, 8, 1 / 8),
        ("1F1B", 1, 1, 8, 0.0),
    ],
)
def test_idle_shares_are_the_published_ones(
    schedule: str, pipeline: int, virtual: int, micro_batches: int, share: float
) -> None:
    assert idle_share(schedule, pipeline, virtual, micro_batches) == pytest.approx(share)
    busy, waiting = seconds(schedule, pipeline, virtual, micro_batches, 2.0, 2.0)
    assert waiting / busy == pytest.approx(share)


def test_the_slowest_stage_sets_the_pace_and_the_others_are_passed_once() -> None:
    busy, waiting = seconds("1F1B", 4, 1, 10, slowest=3.0, mean=1.5)
    assert busy == 30.0
    assert waiting == pytest.approx(3 * 1.0)  # the other three take 1.0 each
