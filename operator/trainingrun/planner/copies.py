"""How many copies of the state memory holds at one size, and whether nodes must keep each other's for it.

Replicas are copies on nodes of their own. Where there is only one, over several nodes, each node can keep the
snapshots of the next one (its buddy), so that any one node can be lost. That needs memory for two more snapshots; a
plan never goes slower for it, and says so when it goes without. Pure; called by the search and its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainingrun.planner.layout import Cut, state_copies
from trainingrun.planner.memory import fits, with_buddies
from trainingrun.planner.text import counted, human_bytes
from trainingrun.planner.types import MemoryBill, ModelShape, NodeShape, TrainingShape


@dataclass(frozen=True)
class Copies:
    count: int  # nodes that hold the least-held piece
    buddies: bool
    bill: MemoryBill  # with what the buddies take
    reason: str


def copies(
    model: ModelShape,
    training: TrainingShape,
    node: NodeShape,
    cut: Cut,
    *,
    replicate: int,
    nodes: int,
    bill: MemoryBill,
) -> Copies:
    """`bill`: of this plan on `nodes` nodes, without buddies."""
    count = state_copies(cut, replicate, node.processes)
    if count > 1:
        lost = counted(count - 1, "node")
        return Copies(
            count, False, bill, _says(count, f"any {lost} can be lost and memory still holds everything")
        )
    if nodes == 1:
        return Copies(
            1, False, bill, _says(1, "there is one node; losing it restores from the durable checkpoint")
        )
    if training.memory_copies < 2:
        why = "a lost node takes a part of the only copy; it restores from the durable checkpoint"
        return Copies(1, False, bill, _says(1, why))
    more = with_buddies(model, training, node, cut, bill)
    extra = human_bytes((more.buddies or more.host - bill.host) * node.processes)
    if fits(more, node):
        why = f"each node keeps the snapshots of a buddy too ({extra} a node), so that any 1 node can be lost"
        return Copies(2, True, more, _says(2, why))
    why = (
        f"a lost node takes a part of the only copy, and the memory of a node does not hold a buddy's snapshots "
        f"too ({extra} more); it restores from the durable checkpoint"
    )
    return Copies(1, False, bill, _says(1, why))


def _says(count: int, why: str) -> str:
    return f"state copies {count}: {why}"
