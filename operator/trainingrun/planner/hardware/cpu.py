"""What a CPU core can do for training. Facts that were measured with this project's own trainer; who reads
them is `planner.inputs` and `hardware.machine`.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Cpu:
    """Measured with PyTorch's Llama layers in FP32, forward and backward, on one and two cores of a 2020s server: 60
    GFLOP/s a core at hidden size 96, 70 at 256, 78 at 512, 80 at 768: within 5 % of `flops_per_core` x h / (h + 40),
    where the time models bring in the hidden size h (`cost.cpu_times`). Half precision is no faster than FP32 unless a
    core has AMX, which is not counted on.
    """

    fp32_flops_per_core: float = 85e9  # of layers without end
    fp64_flops_per_core: float = 42e9
    memory_bytes_per_second: float = 5e9  # one process, read and written by the optimizer's pass
    local_link_bytes_per_second: float = 1e9  # gloo over loopback
    link_bytes_per_second: float = 1e9  # gloo over 10 Gbit/s
    # Measured: importing torch and transformers holds 690 MiB. The agent and the fork server hold it once a
    # node; a forked rank adds 32 MiB of its own and up to 100 MiB of allocator and communication buffers.
    node_bytes: int = 768 * MIB
    process_bytes: int = 128 * MIB


CPU = Cpu()
