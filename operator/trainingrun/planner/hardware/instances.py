"""Instance types of clouds, and reference machines of vendors: which accelerators a node has and what network.

Sources: S = network tables of github.com/stas00/ml-engineering (commit 744d01e); V = the cloud's own page;
P = a public manifest or log; "~": remembered, not read again. `link` is what one accelerator sends to other
nodes, in one direction, at line rate.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Instance:
    name: str  # as node.kubernetes.io/instance-type has it
    gpu: str  # of `hardware.gpus`
    accelerators: int
    network_gbps: float  # of the node, in one direction
    source: str

    @property
    def link_bytes_per_second(self) -> float:
        return self.network_gbps * 1e9 / 8 / self.accelerators


_A40, _A80 = "NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-SXM4-80GB"
_H100, _H200 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-H200"

INSTANCES: tuple[Instance, ...] = (
    Instance("p3.16xlarge", "Tesla-V100-SXM2-16GB", 8, 25, "V"),
    Instance("p3dn.24xlarge", "Tesla-V100-SXM2-32GB", 8, 100, "V"),
    Instance("p4d.24xlarge", _A40, 8, 400, "S"),
    Instance("p4de.24xlarge", _A80, 8, 400, "S"),
    Instance("p5.48xlarge", _H100, 8, 3200, "S"),
    Instance("p5e.48xlarge", _H200, 8, 3200, "S"),
    Instance("p5en.48xlarge", _H200, 8, 3200, "S"),
    Instance("p6-b200.48xlarge", "NVIDIA-B200", 8, 3200, "S"),
    Instance("p6-b300.48xlarge", "NVIDIA-B300-SXM6-AC", 8, 6400, "S"),
    Instance("g5.48xlarge", "NVIDIA-A10G", 8, 100, "~"),
    Instance("g6.48xlarge", "NVIDIA-L4", 8, 100, "~"),
    Instance("g6e.48xlarge", "NVIDIA-L40S", 8, 400, "~"),
    Instance("a2-highgpu-8g", _A40, 8, 100, "~"),
    Instance("a2-ultragpu-8g", _A80, 8, 100, "~"),
    Instance("a3-highgpu-8g", _H100, 8, 800, "S"),
    Instance("a3-megagpu-8g", _H100, 8, 1600, "S"),
    Instance("a3-ultragpu-8g", _H200, 8, 3200, "~"),
    Instance("a4-highgpu-8g", "NVIDIA-B200", 8, 3200, "~"),
    Instance("a4x-highgpu-4g", "NVIDIA-GB200", 4, 1600, "P, ~"),
    Instance("Standard_ND96asr_v4", _A40, 8, 1600, "~"),
    Instance("Standard_ND96amsr_A100_v4", _A80, 8, 1600, "~"),
    Instance("Standard_ND96isr_H100_v5", _H100, 8, 3200, "P"),
    Instance("Standard_ND96isr_H200_v5", _H200, 8, 3200, "~"),
    Instance("BM.GPU.H100.8", _H100, 8, 3200, "~"),
    Instance("DGX-A100", _A80, 8, 1600, "V"),
    Instance("DGX-H100", _H100, 8, 3200, "S"),
    Instance("DGX-B300", "NVIDIA-B300-SXM6-AC", 8, 6400, "S"),
)

_BY_NAME = {instance.name.lower(): instance for instance in INSTANCES}


def instance(name: str) -> Instance | None:
    return _BY_NAME.get(name.strip().lower().replace(" ", "-"))
