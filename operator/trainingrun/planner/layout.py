"""Where the ranks of a rung sit: which piece of the state each holds, on which node, and how many whole
copies there are.

Ranks are ordered as `protocol.records.Rung` says: replicate slowest, then pipeline, shard, context, tensor fastest;
node i runs ranks i*processes .. (i+1)*processes - 1. Pure; called by the search, which must never promise a
copy that is not there.

Why replicate and not pipeline is the slowest axis. Where a copy fits in a node, or in whole nodes, each node or run
of nodes then has a copy of its own: a lost node takes one copy, the others keep every piece and their ranks their
places. With pipeline slowest, the copies of a stage would share nodes, and losing one would lose that stage.
As for time, a node's link carries each step about 2 x 4 bytes x weights of the node where replicas are on other nodes,
and 2 x bytes x tokens x hidden size where the next stage is. A copy within a node has the first and not the second:
faster for many tokens a step, slower for few tokens of a large model, where pipeline slowest could sum up within a
node. A copy that spans nodes has both in either order. So the order is chosen for survival, its price is what `time`
counts, and whoever has slow links can pin fewer stages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from trainingrun.planner.cost.inflight import layers_in_flight
from trainingrun.planner.cost.types import Layout
from trainingrun.protocol.records import STAGES_PER_RANK


@dataclass(frozen=True)
class Cut:
    """How one copy of the training state is cut: the layout that stays the same along a path.

    The ranks of a context group hold the same part of it, side by side on one node.
    """

    pipeline: int
    shard: int
    tensor: int
    context: int = 1
    schedule: str = "1F1B"  # how the stages of a pipeline take turns
    zero: int = 0  # stage of ZeRO, of the engine DeepSpeed

    @property
    def processes(self) -> int:
        """Of one copy."""
        return self.pipeline * self.block

    @property
    def block(self) -> int:
        """Processes of one pipeline rank's copy."""
        return self.shard * self.context * self.tensor

    @property
    def stages(self) -> int:
        return 1 if self.pipeline == 1 else self.pipeline * STAGES_PER_RANK[self.schedule]

    @property
    def head_rank(self) -> int:
        """Pipeline rank of the head. ZBV comes back to the first one."""
        return 0 if self.schedule == "ZBV" else self.pipeline - 1

    @property
    def ends(self) -> tuple[int, ...]:
        """Pipeline ranks that may be the fullest or the slowest: those with embedding and head."""
        return tuple(sorted({0, self.head_rank}))

    def in_flight(self, rank: int) -> float:
        """Micro-batches whose activations a pipeline rank keeps at most, in units of all of its layers.

        As `cost.inflight` has it, with at least as many micro-batches as there are ranks.
        """
        return _in_flight(self.pipeline, self.schedule, rank)

    def copies_on(self, nodes: int, processes: int) -> int:
        """Replicas that `nodes` x `processes` hold; 0 when it does not divide."""
        whole, rest = divmod(nodes * processes, self.processes)
        return 0 if rest else whole


@lru_cache(maxsize=4096)
def _in_flight(pipeline: int, schedule: str, rank: int) -> float:
    stages = STAGES_PER_RANK[schedule]
    layout = Layout(pipeline=pipeline, schedule=schedule, virtual=stages, accumulation=2 * pipeline * stages)
    return layers_in_flight(layout, stages, rank) / stages


@dataclass(frozen=True)
class Group:
    """A communication group along one axis, as each node sees it."""

    size: int
    crosses_nodes: bool
    rings_per_node: int  # how many such groups share the node's link


def pieces_by_node(cut: Cut, replicate: int, processes: int) -> list[set[tuple[int, int, int]]]:
    """For each node, the pieces (pipeline, shard, tensor index) that its ranks hold."""
    world = cut.processes * replicate
    nodes: list[set[tuple[int, int, int]]] = [set() for _ in range(math.ceil(world / processes))]
    for rank in range(world):
        rest, tensor = divmod(rank, cut.tensor)
        rest, shard = divmod(rest // cut.context, cut.shard)
        nodes[rank // processes].add((rest % cut.pipeline, shard, tensor))
    return nodes


def state_copies(cut: Cut, replicate: int, processes: int) -> int:
    """How many nodes hold the least-held piece: any (copies - 1) nodes can vanish and every piece is still
    held.

    Copies of whole nodes are each on nodes of their own; nodes of whole copies each hold everything. Only where copies
    begin and end amid nodes, pieces are counted one by one.
    """
    copy = cut.processes
    if copy % processes == 0:
        return replicate
    if processes % copy == 0:
        return -(-replicate * copy // processes)
    # The ranks of a context group hold the same, and may be on two nodes here.
    holders: dict[tuple[int, int], set[int]] = {}
    for rank in range(replicate * copy):
        block, tensor = divmod(rank % copy, cut.tensor)
        holders.setdefault((block // cut.context, tensor), set()).add(rank // processes)
    return min(len(nodes) for nodes in holders.values())


def group(stride: int, size: int, processes: int) -> Group:
    """A group of `size` ranks that are `stride` apart, on nodes of `processes` ranks."""
    if stride * size <= processes:
        return Group(size, crosses_nodes=False, rings_per_node=0)
    members_here = max(1, processes // stride)
    return Group(size, crosses_nodes=True, rings_per_node=max(1, processes // members_here))
