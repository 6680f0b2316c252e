"""How many members an epoch gets, and which: pure, called by the proposer.

Only whole rungs that the plan calls useful are chosen. Who trains already stays, in the order of its ranks;
the rest is filled up by slot, so that the answer depends on who is there and on nothing else.
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


def choose_members(ready: Sequence[Seat], current: Epoch | None, nodes: int) -> list[Seat]:
    """`nodes` of the ready seats, in the order of their ranks."""
    order = {member.session: rank for rank, member in enumerate(current.members)} if current else {}
    last = len(order)
    return sorted(ready, key=lambda seat: (order.get(seat.session, last), seat.slot))[:nodes]
