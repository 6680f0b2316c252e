"""The table of accelerators, by the name that node labels give them.

Memory is what torch can see (`torch.cuda.mem_get_info`, out-of-memory messages), never the number of the
data sheet. Rates are dense, without sparsity: of the data sheet, and the largest that anybody measured with
big square matrix products, where somebody did. Links are for one direction and one accelerator.

Sources: S = accelerator and network tables of github.com/stas00/ml-engineering (commit 744d01e);
T = peak rates of pytorch/torchtitan (tools/utils.py); D = NVIDIA/dgxc-benchmarking (README); M = memory
totals in public out-of-memory messages and `nvidia-smi` prints; V = the vendor's data sheet; "~": inferred
from the neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30

NVIDIA = "nvidia.com/gpu"
AMD = "amd.com/gpu"


@dataclass(frozen=True)
class Gpu:
    name: str  # as nvidia.com/gpu.product or amd.com/gpu.product-name has it
    family: str  # volta, turing, ampere, ada, hopper, blackwell, cdna: what its kernels are written for
    memory_gib: float
    memory_bytes_per_second: float
    fp32_flops: float  # vector units or matrix units without reduced precision
    fp64_flops: float
    bf16_flops: float  # FP16 is the same; of those without BF16 it is FP16 only
    fp8_flops: float  # 0: none
    local_link_bytes_per_second: float  # to its neighbours; PCIe where there is nothing better
    link_bytes_per_second: float  # its share of the node's network, on the usual instance
    source: str
    measured_bf16_flops: float = 0.0  # 0: nobody measured
    measured_fp8_flops: float = 0.0
    fp4_flops: float = 0.0
    host_link_bytes_per_second: float = 31e9
    per_node: int = 8  # on the usual instance
    domain: int = 0  # accelerators that share the fast links where that is more than a node
    bf16: bool = True  # False: FP16 with loss scaling only
    resource: str = NVIDIA
    other_names: tuple[str, ...] = ()  # of node labels, clouds and tables of measurements

    @property
    def local_links(self) -> bool:
        """Whether neighbours talk over more than PCIe."""
        return self.local_link_bytes_per_second > 70e9


def _gpu(
    name: str,
    family: str,
    gib: float,
    bandwidth: float,
    rates: tuple[float, ...],
    links: tuple[float, float, float],
    source: str,
    *names: str,
    measured: tuple[float, ...] = (),
    per_node: int = 8,
    domain: int = 0,
    bf16: bool = True,
    resource: str = NVIDIA,
) -> Gpu:
    """Rates in TFLOP/s: FP32, FP64, BF16, FP8 and FP4; links and bandwidth in GB/s: neighbours, network, host."""
    own, largest = (
        [rate * 1e12 for rate in (*rates, 0.0, 0.0)],
        [rate * 1e12 for rate in (*measured, 0.0, 0.0)],
    )
    return Gpu(
        name=name,
        family=family,
        memory_gib=gib,
        memory_bytes_per_second=bandwidth * 1e9,
        fp32_flops=own[0],
        fp64_flops=own[1],
        bf16_flops=own[2],
        fp8_flops=own[3],
        fp4_flops=own[4],
        measured_bf16_flops=largest[0],
        measured_fp8_flops=largest[1],
        local_link_bytes_per_second=links[0] * 1e9,
        link_bytes_per_second=links[1] * 1e9,
        host_link_bytes_per_second=links[2] * 1e9,
        source=source,
        per_node=per_node,
        domain=domain,
        bf16=bf16,
        resource=resource,
        other_names=names,
    )


GPUS: tuple[Gpu, ...] = (
    _gpu("NVIDIA-A100-SXM4-40GB", "ampere", 39.4, 1555, (19.5, 19.5, 312), (300, 6.25, 31), "S, V, M",
         "nvidia-tesla-a100", "A100-SXM-40GB", "A100-40GB", measured=(271.2,)),
    _gpu("NVIDIA-A100-SXM4-80GB", "ampere", 79.14, 2000, (19.5, 19.5, 312), (300, 6.25, 31), "S, M",
         "nvidia-a100-80gb", "A100-SXM-80GB", "A100-80GB", measured=(271.2,)),
    _gpu("NVIDIA-A100-80GB-PCIe", "ampere", 79.15, 1940, (19.5, 19.5, 312), (31, 6.25, 31), "S",
         "NVIDIA-A100-PCIE-80GB", measured=(252.9,)),
    _gpu("NVIDIA-A800-SXM4-80GB", "ampere", 79.1, 2000, (19.5, 19.5, 312), (200, 25, 31), "V",
         "A800-80GB", "A800-SXM-80GB"),
    _gpu("NVIDIA-H100-80GB-HBM3", "hopper", 79.18, 3350, (67, 67, 989, 1979), (450, 50, 63), "S, T, M",
         "nvidia-h100-80gb", "nvidia-h100-mega-80gb", "H100-SXM-80GB", "H100", measured=(794.5, 1402.6)),
    _gpu("NVIDIA-H100-PCIe", "hopper", 79.11, 2000, (51, 51, 756, 1513), (63, 25, 63), "S, T"),
    _gpu("NVIDIA-H100-NVL", "hopper", 93.1, 3938, (60, 60, 835, 1671), (300, 25, 63), "T, V"),
    _gpu("NVIDIA-H200", "hopper", 139.8, 4800, (67, 67, 989, 1979), (450, 50, 63), "S, M",
         "nvidia-h200-141gb", "H200-SXM-141GB", measured=(794.5, 1402.6)),
    _gpu("NVIDIA-H20", "hopper", 95.1, 4000, (44, 1, 148, 296), (450, 50, 63), "T, V"),
    _gpu("NVIDIA-H800", "hopper", 79.1, 3350, (67, 1, 989, 1979), (200, 50, 63), "V, M",
         "NVIDIA-H800-80GB-HBM3", "H800-SXM-80GB"),
    _gpu("NVIDIA-GH200-480GB", "hopper", 94.5, 4000, (67, 67, 989, 1979), (450, 25, 450), "S", "NVIDIA-GH200-96GB",
         "GH200-96GB", measured=(828.6,), per_node=4),
    _gpu("NVIDIA-B200", "blackwell", 178.35, 8000, (75, 37, 2250, 4500, 9000), (900, 50, 63), "S, D, M",
         "nvidia-b200", "B200-SXM-180GB", measured=(1745, 3432.5)),
    _gpu("NVIDIA-B300-SXM6-AC", "blackwell", 268, 8000, (75, 1.2, 2250, 4500, 13500), (900, 100, 121), "S, D, ~",
         "NVIDIA-B300", "B300-SXM-288GB", measured=(1769,)),
    _gpu("NVIDIA-GB200", "blackwell", 184.3, 8000, (80, 40, 2500, 5000, 10000), (900, 50, 450), "S, D, M",
         "nvidia-gb200", "GB200-NVL72-186GB", measured=(1822, 3615.6), per_node=4, domain=72),
    _gpu("NVIDIA-GB300", "blackwell", 277, 8000, (80, 1.2, 2500, 5000, 14700), (900, 100, 450), "S, D, ~",
         "nvidia-gb300", "GB300-NVL72-288GB", per_node=4, domain=72),
    _gpu("NVIDIA-L4", "ada", 22.0, 300, (30.3, 0.47, 121, 242), (31, 1.56, 31), "V, M", "nvidia-l4"),
    _gpu("NVIDIA-L40S", "ada", 44.39, 864, (91.6, 1.4, 362, 733), (31, 6.25, 31), "S, M"),
    _gpu("NVIDIA-L40", "ada", 44.4, 864, (90.5, 1.4, 181, 362), (31, 6.25, 31), "V, M"),
    _gpu("NVIDIA-GeForce-RTX-4090", "ada", 23.6, 1008, (82.6, 1.3, 165, 330), (31, 1.25, 31), "V, M", "RTX-4090-24GB"),
    _gpu("NVIDIA-A10G", "ampere", 22.0, 600, (31.2, 0.5, 70), (31, 1.56, 31), "V, M"),
    _gpu("NVIDIA-A10", "ampere", 22.0, 600, (31.2, 0.5, 125), (31, 1.56, 31), "V"),
    _gpu("NVIDIA-A40", "ampere", 44.4, 696, (37.4, 0.6, 150), (31, 6.25, 31), "V, M"),
    _gpu("NVIDIA-RTX-A6000", "ampere", 47.5, 768, (38.7, 1.2, 154.85), (31, 6.25, 31), "T", "RTX-A6000-48GB"),
    _gpu("Tesla-V100-SXM2-16GB", "volta", 15.77, 900, (15.7, 7.8, 125), (150, 3.1, 16), "S, V", "nvidia-tesla-v100",
         "V100-SXM2-16GB", bf16=False),
    _gpu("Tesla-V100-SXM2-32GB", "volta", 31.74, 900, (15.7, 7.8, 125), (150, 12.5, 16), "S, M",
         "V100-SXM2-32GB", "V100-32GB", bf16=False),
    _gpu("Tesla-V100-SXM3-32GB", "volta", 31.74, 900, (15.7, 7.8, 125), (150, 12.5, 16), "S, V",
         "V100-SXM3-32GB(DGX-2)", per_node=16, bf16=False),
    _gpu("Tesla-T4", "turing", 14.6, 320, (8.1, 0.25, 65), (16, 1.56, 16), "V, M", "nvidia-tesla-t4", bf16=False),
    _gpu("AMD_Instinct_MI300X_OAM", "cdna", 191.98, 5300, (163.4, 163.4, 1307, 2614), (448, 50, 63), "S, T, M",
         measured=(668.4,), resource=AMD),
    _gpu("AMD_Instinct_MI325_OAM", "cdna", 255.9, 6000, (163.4, 163.4, 1307, 2614), (448, 50, 63), "S",
         measured=(784.9,), resource=AMD),
    _gpu("AMD_Instinct_MI355X_OAM", "cdna", 287.9, 8000, (157, 79, 2500, 5000, 10000), (535.5, 50, 63), "S, T",
         "MI355X-288GB", measured=(1565,), resource=AMD),
    _gpu("AMD_Instinct_MI250X", "cdna", 63.98, 1640, (47.9, 47.9, 191.5), (175, 12.5, 31), "S", resource=AMD),
)  # fmt: skip


def _canonical(name: str) -> str:
    """Spelling aside: old drivers leave out NVIDIA-, labels have - for blanks, people write lower case."""
    text = name.strip().lower().replace(" ", "-").replace("_", "-").rstrip("?")
    return text.removeprefix("nvidia-")


_BY_NAME = {_canonical(one): gpu for gpu in GPUS for one in (*gpu.other_names, gpu.name)}


def find(name: str) -> Gpu | None:
    return _BY_NAME.get(_canonical(name))


def resources() -> tuple[str, ...]:
    """Names of the accelerator resources that the planner knows."""
    return tuple(sorted({gpu.resource for gpu in GPUS}))


def named(resource: str) -> tuple[str, ...]:
    """Names of the accelerators that are asked for as `resource`."""
    return tuple(gpu.name for gpu in GPUS if gpu.resource == resource)
