"""The axes of an epoch's world, as process groups and as a device mesh.

Ranks are laid out as `Rung` says: tensor varies fastest, then shard, then replicate, then pipeline. Axes of
degree 1 get no group and no mesh dimension: each group costs a round of connections at every start of the
ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainingrun.protocol.records import Rung

AXES = ("pipeline", "replicate", "shard", "tensor")


@dataclass(frozen=True)
class Axes:
    """Where this rank sits. `mesh` has the axes of degree > 1 only, and is None in a world of one."""

    rank: int
    degrees: dict[str, int]
    index: dict[str, int]  # coordinate of this rank on each axis
    mesh: DeviceMesh | None

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
        return self.index["pipeline"] == 0

    @property
    def last_stage(self) -> bool:
        return self.index["pipeline"] == self.degrees["pipeline"] - 1

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
        "pipeline": rung.pipeline,
        "replicate": rung.replicate,
        "shard": rung.shard,
        "tensor": rung.tensor,
    }
    used = [axis for axis in AXES if degrees[axis] > 1]
    mesh = None
    if used:
        mesh = init_device_mesh("cpu", tuple(degrees[axis] for axis in used), mesh_dim_names=tuple(used))
    return Axes(rank=rank, degrees=degrees, index=coordinates(rank, degrees), mesh=mesh)
