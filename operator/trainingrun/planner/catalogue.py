"""Hardware facts: what a CPU core and each known accelerator can do. Data only; who reads it is
`planner.inputs`.

Memory is what the framework can see, never the marketing number. Rates are those of FP32 and FP64 matrix
products without reduced-precision modes (no TF32), and of dense BF16 (FP16 is the same), from vendors' data sheets;
CPU cores have no faster half precision than FP32 unless they have AMX, which is not counted on; training reaches
`MATMUL_SHARE` of them. Link speeds are for one direction and one accelerator. Sources: NVIDIA and AMD data sheets; the
accelerator and network tables of github.com/stas00/ml-engineering (commit 744d01e); memory totals as PyTorch
prints them in out-of-memory messages and `nvidia-smi` (public issue threads).
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30
MIB = 1 << 20

MATMUL_SHARE = 0.6  # of the data sheet's rate, at the shapes of training
LINK_SHARE = 0.8  # of a link's rate, in a ring: 360 of 450 GB/s measured on H200 with 8 accelerators


@dataclass(frozen=True)
class Cpu:
    """Measured with PyTorch's Llama layers in FP32, forward and backward, on one and two cores of a 2020s server: 60
    GFLOP/s a core at hidden size 96, 70 at 256, 78 at 512, 80 at 768. `flops_per_core` x h / (h + `half_rate_hidden`)
    is within 5 % of that.
    """

    fp32_flops_per_core: float = 85e9  # of layers without end
    fp64_flops_per_core: float = 42e9
    half_rate_hidden: float = 40.0  # hidden size at which half of that is reached
    memory_bytes_per_second: float = 5e9  # one process, read and written by the optimizer's pass
    local_link_bytes_per_second: float = 1e9  # gloo over loopback
    link_bytes_per_second: float = 1e9  # gloo over 10 Gbit/s
    # Measured: importing torch and transformers holds 690 MiB. The agent and the fork server hold it once a
    # node; a forked rank adds 32 MiB of its own and up to 100 MiB of allocator and communication buffers.
    node_bytes: int = 768 * MIB
    process_bytes: int = 128 * MIB


@dataclass(frozen=True)
class Accelerator:
    name: str  # as node labels name it (nvidia.com/gpu.product, amd.com/gpu.product-name)
    resource: str
    memory_gib: float
    memory_bytes_per_second: float
    fp32_flops: float
    fp64_flops: float
    local_link_bytes_per_second: float  # to its neighbours in the node
    link_bytes_per_second: float  # its share of the node's network, on the usual cloud instance
    bf16_flops: float


CPU = Cpu()

CONTEXT_BYTES = int(
    1.5 * GIB
)  # driver context, libraries, communicators: 1.3-1.6 GiB measured on V100 and A100

_NVIDIA = "nvidia.com/gpu"
_AMD = "amd.com/gpu"

ACCELERATORS: tuple[Accelerator, ...] = (
    Accelerator("NVIDIA-A100-SXM4-40GB", _NVIDIA, 39.4, 1555e9, 19.5e12, 19.5e12, 300e9, 6.25e9, 312e12),
    Accelerator("NVIDIA-A100-SXM4-80GB", _NVIDIA, 79.14, 2000e9, 19.5e12, 19.5e12, 300e9, 6.25e9, 312e12),
    Accelerator("NVIDIA-H100-80GB-HBM3", _NVIDIA, 79.18, 3350e9, 67e12, 67e12, 450e9, 50e9, 989e12),
    Accelerator("NVIDIA-H200", _NVIDIA, 139.8, 4800e9, 67e12, 67e12, 450e9, 50e9, 989e12),
    Accelerator("NVIDIA-B200", _NVIDIA, 178.35, 8000e9, 75e12, 37e12, 900e9, 50e9, 2250e12),
    Accelerator("NVIDIA-L4", _NVIDIA, 22.0, 300e9, 30.3e12, 0.47e12, 31e9, 1.56e9, 121e12),
    Accelerator("NVIDIA-L40S", _NVIDIA, 44.39, 864e9, 91.6e12, 1.4e12, 31e9, 6.25e9, 362e12),
    Accelerator("AMD_Instinct_MI300X_OAM", _AMD, 191.98, 5300e9, 163.4e12, 163.4e12, 448e9, 50e9, 1307e12),
)


def resources() -> tuple[str, ...]:
    """Names of the accelerator resources that the planner knows."""
    return tuple(sorted({entry.resource for entry in ACCELERATORS}))


def named(resource: str) -> tuple[str, ...]:
    """Names of the accelerators that are asked for as `resource`."""
    return tuple(entry.name for entry in ACCELERATORS if entry.resource == resource)


def find(name: str) -> Accelerator | None:
    return next((entry for entry in ACCELERATORS if entry.name == name), None)
