"""Start of the first fit."""

SHARES: dict[str, dict[str, float]] = {
    "volta": {"fp16": 0.55, "host": 1.5},
    "turing": {"fp16": 0.5, "host": 1.5},
    "ampere": {"fp16": 0.8, "host": 1.4},
    "ada": {"fp16": 0.7, "fp8": 0.6},
    "hopper": {"fp16": 0.72, "fp8": 0.6},
    "blackwell": {"fp16": 0.7, "fp8": 0.62, "mxfp8": 0.62, "nvfp4": 0.55},
    "cdna": {"fp16": 0.5},
    "cpu": {"fp16": 1.0, "fp32": 1.0, "host": 1.0},
}
HOSTS: dict[str, float] = {"NVIDIA-GB200": 1.3}
GROUPED_SHARE = 0.75
ATTENTION_SHARE = 0.65
MEMORY_SHARE = 0.85
COMMON: dict[str, float] = {
    "matmul": 1.0,
    "product_bytes": 1.0,
    "cast_bytes": 3.0,
    "attention": 1.0,
    "attention_whole": 1.5,
    "misaligned": 1.5,
    "score_bytes": 10.0,
    "element_passes": 2.5,
    "scan_passes": 20.0,
    "permute_passes": 3.0,
    "tensor_exposed": 0.8,
    "context_exposed": 0.3,
    "expert_exposed": 0.8,
    "transfer_exposed": 0.3,
    "loss_bytes": 24.0,
    "loss_bytes_fused": 10.0,
    "start_layer": 3.5e-3,
    "start_tensor": 2e-3,
    "start_context": 2e-3,
    "start_experts": 4e-3,
    "start_expert": 5e-4,
    "start_adapters": 1e-3,
    "start_shards": 1e-3,
    "widen_bytes": 9.0,
    "start_stage": 2e-3,
    "start_step": 0.02,
    "data_hidden": 0.7,
    "data_contention": 0.1,
    "update_passes": 1.3,
    "host_memory": 1e11,
}
FRAMEWORKS: dict[str, dict[str, float]] = {}
