"""Coefficients of the time model on CPU cores, where the host that starts operations is what computes them.

Set by hand from this project's own benchmarks (PyTorch's Llama layers in FP32, see `hardware.cpu`); the published
measurements that `fitted` comes from are of accelerators. Means of the names: `planner.cost.time`.
"""

from __future__ import annotations

from trainingrun.planner.cost import fitted

_OWN: dict[str, float] = {
    "matmul": 1.0,
    "half_rate_hidden": 40.0,  # hidden size at which half of the rate is reached
    "ragged": 1.0,  # there are no tiles to fill
    "wave": 0.0,
    "product_bytes": 0.1,  # weights of a layer stay in the cache while tokens pass
    "accumulate_bytes": 1.0,
    "element_passes": 0.05,  # of what the optimizer's pass takes, which goes to memory and back
    "attention": 1.0,
    "attention_whole": 1.0,
    "misaligned": 1.0,
    "score_bytes": 1.0,
    "loss_bytes": 2.0,
    "loss_bytes_fused": 2.0,
    "tensor_exposed": 1.0,  # gloo and the computation share the cores
    "context_exposed": 1.0,
    "expert_exposed": 1.0,
    "transfer_exposed": 1.0,
    "idle": 1.0,
    "data_hidden": 0.0,
    "data_contention": 0.0,
    "shard_member": 0.0,
    "update_passes": 0.5,
    "start_layer": 1.5e-3,  # about 150 operations of 10 us, forward and backward (1.7 ms measured)
    "start_tensor": 2e-4,
    "start_context": 2e-4,
    "start_scores": 0.0,
    "start_head_norms": 1e-4,
    "start_experts": 1e-3,
    "start_expert": 2e-4,
    "start_shards": 5e-4,
    "start_stage": 5e-4,
    "start_step": 1e-3,
    "load_batch": 2e-4,
}


def table() -> dict[str, float]:
    return fitted.COMMON | _OWN


CPU_TIMES = table()
