"""Ranks measure their machine: rates that can be, equal on all ranks, and no memory that stays."""

from __future__ import annotations

from itertools import count

import pytest
import torch

from trainer import probe
from trainer.peak import private_bytes


def test_one_process_measures_its_products_and_copies() -> None:
    found = probe.measure(1, 1, torch.float32)
    assert 1e8 < found.matmul_flops < 1e13
    assert 1e8 < found.memory_bytes_per_second < 1e12
    assert (found.local_link_bytes_per_second, found.link_bytes_per_second) == (0, 0)


def test_nothing_that_was_copied_stays_with_the_process() -> None:
    probe.measure(1, 1, torch.float32)  # libraries keep their own buffers from the first time on
    before = private_bytes()
    probe.measure(1, 1, torch.float32)
    assert private_bytes() - before < 16 << 20


def test_the_fastest_turn_within_the_budget_counts() -> None:
    # A clock that jumps: two readings a turn, and one where the budget is looked at.
    times = iter([0.0, 0.0, 1.0, 3.0, 1.0, 1.5, 9.0])
    assert probe.best_seconds(lambda: None, budget=5.0, clock=lambda: next(times)) == 0.5


def test_turns_are_equal_on_all_ranks_where_they_meet() -> None:
    turns = count()
    ticks = count()
    probe.best_seconds(lambda: next(turns), most=2, clock=lambda: float(next(ticks)))
    assert next(turns) == 3


@pytest.mark.parametrize("nodes", [1, 2])
def test_links_are_those_inside_of_one_node_or_between_several(
    nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe.dist, "all_reduce", lambda tensor, op=None: None)
    found = probe.measure(2, nodes, torch.float32)
    assert bool(found.local_link_bytes_per_second) == (nodes == 1)
    assert bool(found.link_bytes_per_second) == (nodes == 2)
