"""What families with experts do, from their configs. One function each; `families` has the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainingrun.planner.errors import PlanInputError
from trainingrun.planner.models.dense_families import olmo2, qwen3, refuse, windows
from trainingrun.planner.types import Experts, LatentAttention

Config = Mapping[str, Any]
Fields = dict[str, Any]


def mixtral(config: Config) -> Fields:
    inner = int(config["intermediate_size"])
    return {
        "experts": Experts(int(config["num_local_experts"]), int(config["num_experts_per_tok"]), inner),
        **windows(config),
    }


def phimoe(config: Config) -> Fields:
    return {
        **mixtral(config),
        "query_bias": bool(config.get("attention_bias")),
        "output_bias": bool(config.get("attention_bias")),
        "norm_bias": True,
        "head_bias": bool(config.get("lm_head_bias")),
    }


def olmoe(config: Config) -> Fields:
    inner = int(config["intermediate_size"])
    return {
        **olmo2(config),
        "experts": Experts(int(config["num_experts"]), int(config["num_experts_per_tok"]), inner),
    }


def _sparse(config: Config, *, shared: int = 0, gate: bool = False) -> Experts:
    """Qwen's rule: every `decoder_sparse_step`-th layer has experts."""
    if config.get("mlp_only_layers"):
        raise PlanInputError(
            "model.config.mlp_only_layers",
            config["mlp_only_layers"],
            "single layers without experts are not known",
            "use decoder_sparse_step",
        )
    return Experts(
        int(config.get("num_experts") or config.get("num_local_experts") or 0),
        int(config["num_experts_per_tok"]),
        int(config["moe_intermediate_size"]),
        shared_intermediate_size=shared,
        shared_gate=gate,
        every=int(config.get("decoder_sparse_step") or 1),
    )


def qwen2_moe(config: Config) -> Fields:
    shared = int(config["shared_expert_intermediate_size"])
    return {
        **windows(config),
        "query_bias": bool(config.get("qkv_bias", True)),
        "experts": _sparse(config, shared=shared, gate=True),
    }


def qwen3_moe(config: Config) -> Fields:
    return {**qwen3(config), "experts": _sparse(config)}


def gpt_oss(config: Config) -> Fields:
    return {
        **windows(config),
        "query_bias": bool(config.get("attention_bias", True)),
        "output_bias": bool(config.get("attention_bias", True)),
        "sinks": True,
        "experts": Experts(
            int(config["num_local_experts"]),
            int(config["num_experts_per_tok"]),
            int(config["intermediate_size"]),
            router_bias=True,
            bias=True,
        ),
    }


def deepseek(config: Config) -> Fields:
    refuse(config, "attention_bias", False, "a bias of attention")
    return {
        "latent": LatentAttention(
            query_rank=int(config.get("q_lora_rank") or 0),
            key_value_rank=int(config["kv_lora_rank"]),
            rotary_dim=int(config["qk_rope_head_dim"]),
            nope_dim=int(config["qk_nope_head_dim"]),
            value_dim=int(config["v_head_dim"]),
        ),
        "experts": _routed_and_shared(config),
    }


def _routed_and_shared(config: Config) -> Experts:
    """After the first layers, which are dense."""
    inner = int(config["moe_intermediate_size"])
    return Experts(
        int(config["n_routed_experts"]),
        int(config["num_experts_per_tok"]),
        inner,
        shared_intermediate_size=inner * int(config.get("n_shared_experts") or 0),
        leading_dense_layers=int(config.get("first_k_dense_replace") or 0),
    )


def glm4_moe(config: Config) -> Fields:
    return {
        "query_bias": bool(config.get("attention_bias")),
        "head_norms": bool(config.get("use_qk_norm")),
        "experts": _routed_and_shared(config),
    }


def llama4(config: Config) -> Fields:
    inner = int(config["intermediate_size"])
    step = int(config.get("interleave_moe_layer_step") or 1)
    return {
        "intermediate_size": int(config["intermediate_size_mlp"]),
        "query_bias": bool(config.get("attention_bias")),
        "output_bias": bool(config.get("attention_bias")),
        "experts": Experts(
            int(config["num_local_experts"]),
            int(config["num_experts_per_tok"]),
            inner,
            shared_intermediate_size=inner,
            every=step,
        ),
    }
