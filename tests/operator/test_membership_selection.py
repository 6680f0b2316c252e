"""Who trains, and in which order, where a copy of the state takes more than one node."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from trainingrun.membership.roster import Seat
from trainingrun.membership.selection import choose_members, nodes_of_a_copy
from trainingrun.protocol.messages import JoinRequest
from trainingrun.protocol.records import Epoch, Restore, RestoreSource, Rung, Store, Trigger


def a_rung(nodes: int, span: int) -> Rung:
    """Pipelines of `span` nodes, a stage on each."""
    return Rung(nodes, 1, span, nodes // span, 1, 1, 1, span, 0, nodes // span)


def a_seat(slot: int) -> Seat:
    join = JoinRequest((1, 1), slot, 0, "p", f"s{slot}", f"n{slot}", "127.0.0.1", 1, 2, 1, "cpu")
    return Seat(join, 0.0)


def an_epoch(rung: Rung, slots: list[int]) -> Epoch:
    members = tuple(a_seat(slot).as_member() for slot in slots)
    store, restore = Store("127.0.0.1", 1, "e1/"), Restore(RestoreSource.INITIAL)
    return Epoch("r-e1", "r", "u", 1, "r-r1", "n", 0.0, members, rung, store, restore, Trigger.STARTED, 0.0)


def chosen(slots: list[int], current: Epoch | None, rung: Rung) -> list[int]:
    return [seat.slot for seat in choose_members([a_seat(slot) for slot in slots], current, rung)]


def test_survivors_of_two_copies_make_one_and_each_keeps_its_stage() -> None:
    current = an_epoch(a_rung(4, 2), [0, 1, 2, 3])
    assert chosen([1, 2, 3], current, a_rung(2, 2)) == [2, 1]
    assert chosen([0, 2, 3], current, a_rung(2, 2)) == [0, 3]
    assert chosen([1, 2], current, a_rung(2, 2)) == [2, 1]


def test_a_newcomer_takes_the_place_that_is_free() -> None:
    current = an_epoch(a_rung(4, 2), [0, 1, 2, 3])
    assert chosen([1, 2, 3, 7], current, a_rung(4, 2)) == [2, 1, 7, 3]
    assert chosen([0, 1, 2, 8, 9], current, a_rung(4, 2)) == [0, 1, 2, 8]


def test_who_trains_stays_even_where_his_place_is_taken() -> None:
    current = an_epoch(a_rung(4, 2), [0, 1, 2, 3])
    assert chosen([0, 2, 5], current, a_rung(2, 2)) == [0, 2]


def test_the_first_members_and_those_of_another_layout_go_by_rank_then_slot() -> None:
    assert chosen([3, 1, 2, 0], None, a_rung(2, 2)) == [0, 1]
    one_node = an_epoch(replace(a_rung(4, 1)), [3, 2, 1, 0])
    assert chosen([0, 1, 2, 3], one_node, a_rung(4, 2)) == [3, 2, 1, 0]
    assert nodes_of_a_copy(a_rung(4, 2)) == 2
    assert nodes_of_a_copy(replace(a_rung(2, 1), processes_per_node=4, replicate=8)) == 1


@given(st.integers(1, 3), st.permutations(range(6)), st.sets(st.integers(0, 8)), st.integers(1, 8))
def test_as_many_as_asked_none_twice_and_nobody_new_while_a_member_waits(
    span: int, order: list[int], ready: set[int], nodes: int
) -> None:
    nodes = nodes // span * span
    if not 0 < nodes <= len(ready):
        return
    before = order[: 6 // span * span]
    found = chosen(sorted(ready), an_epoch(a_rung(len(before), span), before), a_rung(nodes, span))
    assert len(found) == len(set(found)) == nodes
    assert set(found) <= ready
    left_out = ready - set(found)
    if set(found) - set(before):
        assert not left_out & set(before)
