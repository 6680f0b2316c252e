"""How much each size of a run counts when cuts are compared, and which sizes a cut makes use of.

One cut is kept from minNodes to maxNodes, so a cut is as good as what it does over all these sizes. A run is at its
largest size while nothing is missing: that one has half of the weight. The other half is spread evenly over all sizes:
nobody knows which nodes will be lost, or how many are free when it begins. A size that copies do not fill whole, or
whose ranks would have no less to do than on a smaller one, does what the next smaller does; below the first it does
nothing. What counts is the average of tokens a second: with a given mix of sizes, the cut with the most of it ends
soonest and costs the least, for nodes are paid by the minute whether they are idle or not.

What may run out of memory is counted as slower by `risk`. Pure; for `fastest` and `search`.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainingrun.planner.candidates import split
from trainingrun.planner.layout import Cut
from trainingrun.planner.memory import available_bytes
from trainingrun.planner.types import Inventory, MemoryBill, NodeShape, TrainingShape
from trainingrun.planner.weighing import p_oom

AT_MOST = 0.5  # of the weight, for the largest size alone


@dataclass(frozen=True, slots=True)
class Size:
    """A size that a cut makes use of."""

    nodes: int
    replicate: int
    weight: float  # with that of the larger sizes that do what this one does


def sizes_of(training: TrainingShape, cut: Cut, units: int, inventory: Inventory) -> tuple[Size, ...]:
    """Ascending; none where no size of the run holds whole copies that all have work."""
    least, most, processes = inventory.min_nodes, inventory.max_nodes, inventory.node.processes
    found: list[tuple[int, int]] = []
    share = 0
    for nodes in range(-(-least // units) * units, most + 1, units):
        replicate = cut.copies_on(nodes, processes)
        whole = split(training, cut, replicate, micro_batch=1) if replicate else None
        if whole is None:
            break  # more copies have less to do
        if not found or whole.accumulation < share:
            found.append((nodes, replicate))
            share = whole.accumulation
    ends = [*(nodes for nodes, _ in found), most + 1][1:]
    return tuple(
        Size(nodes, replicate, weight(inventory, nodes, end))
        for (nodes, replicate), end in zip(found, ends, strict=True)
    )


def risk(bill: MemoryBill, node: NodeShape, engine: str = "Native") -> float:
    """What to multiply the seconds of a step with: a plan that runs out of memory is done again with a slower one, so
    that such a step counts twice.
    """
    return 1.0 + p_oom(bill, available_bytes(node), engine)


def weight(inventory: Inventory, first: int, end: int) -> float:
    """Of the sizes from `first` until before `end`. All sizes together have 1."""
    least, most = inventory.min_nodes, inventory.max_nodes
    even = (1.0 - AT_MOST) * (end - first) / (most - least + 1)
    return even + (AT_MOST if first <= most < end else 0.0)
