"""Copies of the state, counted against every rank and every way to lose nodes."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from trainingrun.planner.layout import Cut, group, pieces_by_node, state_copies
from trainingrun.planner.rules import shard_degree


def survives_any_loss_of(count: int, nodes: list[set[tuple[int, int, int]]], cut: Cut) -> bool:
    everything = set().union(*nodes)
    assert len(everything) == cut.pipeline * cut.shard * cut.tensor
    return all(
        set().union(*(nodes[i] for i in range(len(nodes)) if i not in lost)) == everything
        for lost in combinations(range(len(nodes)), count)
    )


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Cut, int, int]:
    """(cut, replicate, processes a node), as the search makes them: whole copies on whole nodes, at most 6
    nodes.
    """
    processes = draw(st.sampled_from([1, 2, 4, 8]))
    tensor = draw(st.sampled_from([t for t in (1, 2, 4, 8) if processes % t == 0]))
    found = [
        (Cut(pipeline, shard, tensor, context), units)
        for context in (1, 2, 4)
        if processes % (tensor * context) == 0
        for pipeline in range(1, 7)
        for units in range(1, 7)
        if (shard := shard_degree(processes, tensor * context, pipeline, units))
    ]
    cut, units = draw(st.sampled_from(found))
    return cut, draw(st.integers(1, max(1, 6 // units))), processes


@settings(deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 3), st.sampled_from([1, 2]), st.sampled_from([1, 2]), st.integers(1, 3)
)
def test_copies_that_begin_amid_a_node_are_counted_too(
    pipeline: int, shard: int, context: int, tensor: int, replicate: int
) -> None:
    cut, processes = Cut(pipeline, shard, tensor, context), 4
    nodes = pieces_by_node(cut, replicate, processes)
    copies = state_copies(cut, replicate, processes)
    assert survives_any_loss_of(copies - 1, nodes, cut)
    assert not survives_any_loss_of(copies, nodes, cut)


@given(layouts())
def test_state_copies_are_what_losing_nodes_one_by_one_shows(layout: tuple[Cut, int, int]) -> None:
    cut, replicate, processes = layout
    nodes = pieces_by_node(cut, replicate, processes)
    copies = state_copies(cut, replicate, processes)
    assert survives_any_loss_of(copies - 1, nodes, cut)
    assert not survives_any_loss_of(copies, nodes, cut)


def test_each_node_of_a_sharded_and_replicated_run_holds_a_whole_copy() -> None:
    cut = Cut(pipeline=1, shard=2, tensor=2)
    assert pieces_by_node(cut, 3, 4) == [{(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)}] * 3
    assert state_copies(cut, 3, 4) == 3


def test_replicate_is_the_slowest_axis_so_each_node_holds_all_stages_where_they_fit() -> None:
    cut = Cut(pipeline=2, shard=1, tensor=1)
    assert pieces_by_node(cut, 2, 2) == [{(0, 0, 0), (1, 0, 0)}] * 2
    assert state_copies(cut, 2, 2) == 2
    assert state_copies(cut, 4, 2) == 4


def test_copies_that_span_nodes_are_each_on_nodes_of_their_own() -> None:
    cut = Cut(pipeline=2, shard=2, tensor=1)
    assert pieces_by_node(cut, 2, 2) == [{(0, 0, 0), (0, 1, 0)}, {(1, 0, 0), (1, 1, 0)}] * 2
    assert state_copies(cut, 2, 2) == 2


def test_the_ranks_of_a_pipeline_that_send_over_a_link_are_those_of_one_stage() -> None:
    assert group(stride=2, size=4, processes=4).rings_per_node == 2  # two stages a node, the second one sends
    assert group(stride=4, size=2, processes=4).rings_per_node == 4


def test_a_group_within_a_node_uses_no_link_and_one_across_shares_it() -> None:
    assert not group(stride=2, size=2, processes=4).crosses_nodes
    assert group(stride=4, size=2, processes=4).rings_per_node == 4
    assert group(stride=1, size=8, processes=4).rings_per_node == 1
