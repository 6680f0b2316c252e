"""Which pieces of the state a node's ranks need, and which of its peers have them. Pure.

A piece is (pipeline, shard, tensor) within a layout: what one rank holds of one copy of the state.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainingrun.protocol.records import Epoch, Member, Rung

Piece = tuple[int, int, int]


def piece_of(rank: int, rung: Rung) -> Piece:
    """Ranks run tensor fastest, then context, shard, pipeline, replicate."""
    rest, tensor = divmod(rank, rung.tensor)
    rest, shard = divmod(rest // rung.context, rung.shard)
    return (rest % rung.pipeline, shard, tensor)


def all_pieces(layout: tuple[int, int, int]) -> frozenset[Piece]:
    pipelines, shards, tensors = layout
    return frozenset((p, s, t) for p in range(pipelines) for s in range(shards) for t in range(tensors))


def needed(record: Epoch, member: int) -> frozenset[Piece]:
    """Its ranks' own pieces when the state is cut as before, otherwise all of them: each rank reads what it
    needs.
    """
    if record.rung.layout != record.restore.layout:
        return all_pieces(record.restore.layout)
    return of_member(record.rung, member)


def of_member(rung: Rung, member: int) -> frozenset[Piece]:
    """What the ranks of this node hold."""
    first = member * rung.processes_per_node
    return frozenset(piece_of(first + i, rung) for i in range(rung.processes_per_node))


def buddy(record: Epoch, member: int) -> int:
    """The member whose snapshots `member` keeps too: the next one, so that each has exactly one keeper."""
    return (member + 1) % len(record.members)


def holders(record: Epoch, member: int) -> Sequence[Member]:
    """Other members that hold the snapshot, starting behind `member`, so that joiners do not all ask the same
    one.
    """
    count = len(record.members)
    order = (record.members[(member + i) % count] for i in range(1, count))
    return [other for other in order if other.slot in record.restore.holders]
