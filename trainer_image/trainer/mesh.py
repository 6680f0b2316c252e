"""The axes of an epoch's world, as process groups and as a device mesh.

Ranks are laid out as `Rung` says: tensor varies fastest, then context, shard, pipeline, and replicate slowest. Axes
of degree 1 get no group and no mesh dimension: each group costs a round of connections at every start of the
ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainingrun.protocol.records import Rung

AXES = ("replicate", "pipeline", "shard", "context", "tensor")


@dataclass(frozen=True)
class Axes:
    """Where this rank sits. `mesh` has the axes of degree > 1 only, and is None in a world of one."""

    rank: int
    degrees: dict[str, int]
    index: dict[str, int]  # coordinate of this rank on each axis
    mesh: DeviceMesh | None
    stages: tuple[int, ...] = (0,)  # that this rank computes, ascending
    stage_count: int = 1  # of the whole model
    sequence_parallel: bool = False  # tensor ranks share the tokens of hidden states

    def degree(self, axis: str) -> int:
        return self.degrees[axis]

    def group(self, axis: str) -> dist.ProcessGroup | None:
        """Process group along `axis`, None where its degree is 1."""
        return self.mesh[axis].get_group() if self.mesh is not None and self.degrees[axis] > 1 else None

    def submesh(self, axis: str) -> DeviceMesh:
        if self.mesh is None or self.degrees[axis] == 1:
            raise ValueError(f"axis {axis} has degree 1 and no mesh")
        return self.mesh[axis]

    @property
    def world(self) -> int:
        size = 1
        for degree in self.degrees.values():
            size *= degree
        return size

    @property
    def data_degree(self) -> int:
        return self.degrees["replicate"] * self.degrees["shard"]

    @property
    def data_rank(self) -> int:
        """Which share of the global batch this rank reads; equal for all ranks of one model replica's
        slice.
        """
        return self.index["replicate"] * self.degrees["shard"] + self.index["shard"]

    @property
    def first_stage(self) -> bool:
        """Whether this rank has the embedding."""
        return self.stages[0] == 0

    @property
    def last_stage(self) -> bool:
        """Whether this rank has the head, and so the loss. Under ZBV it is a rank that has the embedding too."""
        return self.stages[-1] == self.stage_count - 1

    @property
    def leads_data_rank(self) -> bool:
        """One of the ranks that read the same share of the batch: the one that writes down what was read."""
        return self.index["pipeline"] == self.index["context"] == self.index["tensor"] == 0

    @property
    def dropout_index(self) -> int:
        """Seeds dropout: equal for the ranks of a tensor group, which must drop the same of what all of them hold.
        With sequence parallelism they hold different tokens.
        """
        return self.rank if self.sequence_parallel else self.rank - self.index["tensor"]

    def tokens_of(self, sequence_length: int) -> slice:
        """This rank's tokens of each sequence."""
        size = sequence_length // self.degrees["context"]
        return slice(self.index["context"] * size, (self.index["context"] + 1) * size)

    def hidden_tokens_of(self, sequence_length: int) -> slice | None:
        """Of `tokens_of`, those whose hidden states this rank has between the layers; None: all of them."""
        if not self.sequence_parallel:
            return None
        size = sequence_length // (self.degrees["context"] * self.degrees["tensor"])
        return slice(self.index["tensor"] * size, (self.index["tensor"] + 1) * size)

    @property
    def piece(self) -> tuple[int, int, int]:
        """Which piece of the state this rank holds, within `Rung.layout`."""
        return (self.index["pipeline"], self.index["shard"], self.index["tensor"])


def coordinates(rank: int, degrees: dict[str, int]) -> dict[str, int]:
    """Coordinate on each axis of `rank`; the last axis varies fastest."""
    index: dict[str, int] = {}
    for axis in reversed(AXES):
        rank, index[axis] = divmod(rank, degrees[axis])
    return index


def build_axes(rung: Rung, rank: int) -> Axes:
    """Collective over the default process group, unless the world is a single rank."""
    degrees = {
        "replicate": rung.replicate,
        "pipeline": rung.pipeline,
        "shard": rung.shard,
        "context": rung.context,
        "tensor": rung.tensor,
    }
    used = [axis for axis in AXES if degrees[axis] > 1]
    mesh = None
    if used:
        mesh = init_device_mesh("cpu", tuple(degrees[axis] for axis in used), mesh_dim_names=tuple(used))
    index = coordinates(rank, degrees)
    return Axes(
        rank=rank,
        degrees=degrees,
        index=index,
        mesh=mesh,
        stages=rung.stages_of(index["pipeline"]),
        stage_count=rung.stages,
        sequence_parallel=rung.sequence_parallel and rung.tensor > 1,
    )


def end_group(axes: Axes) -> dist.ProcessGroup | None:
    """The first and the last rank of this rank's pipeline; None on the ranks between. Collective over these two."""
    last = axes.degree("pipeline") - 1
    if axes.index["pipeline"] not in (0, last) or last == 0:
        return None
    if last == 1:
        return axes.group("pipeline")
    apart = axes.degree("shard") * axes.degree("context") * axes.degree("tensor")
    first = axes.rank - axes.index["pipeline"] * apart
    return dist.new_group([first, first + last * apart], use_local_synchronization=True)
