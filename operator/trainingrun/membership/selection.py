"""How many members an epoch gets, and which: pure, called by the proposer.

Only whole rungs that the plan calls useful are chosen. Who trains already stays, in the order of its ranks and at
its place in a copy of the state; the rest is filled up by slot, so that the answer depends on who is there and on
nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainingrun.membership.roster import Seat
from trainingrun.protocol.records import Epoch, Rung


def useful_rungs(rungs: Iterable[Rung]) -> list[Rung]:
    """Ascending by nodes."""
    return sorted((rung for rung in rungs if rung.useful), key=lambda rung: rung.nodes)


def choose_rung(rungs: Iterable[Rung], ready: int) -> Rung | None:
    """The largest useful rung that `ready` nodes can fill, or None."""
    fitting = [rung for rung in useful_rungs(rungs) if rung.nodes <= ready]
    return fitting[-1] if fitting else None


def choose_members(ready: Sequence[Seat], current: Epoch | None, rung: Rung) -> list[Seat]:
    """As many of the ready seats as `rung` has nodes, in the order of their ranks.

    Where a copy of the state takes several nodes, those that stay keep their place in a copy, and so their pieces:
    of two copies that each lost a node, the survivors make one.
    """
    order = {member.session: rank for rank, member in enumerate(current.members)} if current else {}
    last = len(order)
    waiting = sorted(ready, key=lambda seat: (order.get(seat.session, last), seat.slot))
    span = nodes_of_a_copy(rung)
    if current is None or span == 1 or span != nodes_of_a_copy(current.rung):
        return waiting[: rung.nodes]
    chosen: list[Seat | None] = []
    for place in range(rung.nodes):
        here = (seat for seat in waiting if order.get(seat.session, -1) % span == place % span)
        kept = next((seat for seat in here if seat.session in order), None)
        if kept is not None:
            waiting.remove(kept)
        chosen.append(kept)
    return [seat if seat is not None else waiting.pop(0) for seat in chosen]


def nodes_of_a_copy(rung: Rung) -> int:
    """On how many nodes one copy of the state lies, by the order of ranks; 1 where a node has more than one."""
    return max(1, rung.world // rung.replicate // rung.processes_per_node)
