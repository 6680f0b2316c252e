"""What each family of transformers models does differently from Llama, from its config. One function each; the
table is the list of what is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainingrun.planner.errors import PlanInputError
from trainingrun.planner.types import Experts, LatentAttention

Config = Mapping[str, Any]
Fields = dict[str, Any]

_GPT: Fields = {
    "gated": False,
    "rotary": False,
    "query_bias": True,
    "output_bias": True,
    "feed_forward_bias": True,
    "norm_bias": True,
}


def _refuse(config: Config, key: str, allowed: object, reason: str) -> None:
    value = config.get(key)
    if value is not None and value != allowed:
        raise PlanInputError(
            f"model.config.{key}",
            value,
            f"{reason} is not known for {config['model_type']}",
            f"use {allowed}",
        )


def _windows(config: Config) -> Fields:
    """How many layers look back only so far."""
    window = config.get("sliding_window")
    if not window or config.get("use_sliding_window") is False:
        return {}
    kinds = config.get("layer_types")
    layers = int(config["num_hidden_layers"])
    sliding = sum(kind == "sliding_attention" for kind in kinds) if kinds else layers
    return {"sliding_window": int(window), "sliding_layers": sliding}


def _llama(config: Config) -> Fields:
    biased = bool(config.get("attention_bias"))
    return {
        "query_bias": biased,
        "output_bias": biased,
        "feed_forward_bias": bool(config.get("mlp_bias")),
        **_windows(config),
    }


def _qwen2(config: Config) -> Fields:
    return {"query_bias": True, **_windows(config)}


def _qwen3(config: Config) -> Fields:
    return {**_llama(config), "head_norms": True}


def _gemma2(config: Config) -> Fields:
    return {**_llama(config), "norms": 4}


def _gemma3(config: Config) -> Fields:
    return {**_llama(config), "norms": 4, "head_norms": True}


def _gpt2(config: Config) -> Fields:
    _refuse(config, "add_cross_attention", False, "attention to another sequence")
    return dict(_GPT)


def _gpt_bigcode(config: Config) -> Fields:
    return {**_GPT, **({"key_value_heads": 1} if config.get("multi_query", True) else {})}


def _gpt_neo(config: Config) -> Fields:
    kinds = config.get("attention_layers") or []
    sliding = sum(kind == "local" for kind in kinds)
    return {
        **_GPT,
        "query_bias": False,
        "sliding_window": int(config.get("window_size") or 0) if sliding else 0,
        "sliding_layers": sliding,
    }


def _gptj(config: Config) -> Fields:
    return {
        "gated": False,
        "feed_forward_bias": True,
        "norm_bias": True,
        "norms": 1,
        "head_bias": True,
    }


def _gpt_neox(config: Config) -> Fields:
    biased = bool(config.get("attention_bias", True))
    return {**_GPT, "rotary": True, "query_bias": biased, "output_bias": biased}


def _phi(config: Config) -> Fields:
    _refuse(config, "qk_layernorm", False, "a norm of queries and keys")
    return {**_GPT, "rotary": True, "norms": 1, "head_bias": True}


def _olmo(config: Config) -> Fields:
    return {**_llama(config), "norm_weights": False}


def _olmo2(config: Config) -> Fields:
    return {**_llama(config), "projection_norms": True}


def _bloom(config: Config) -> Fields:
    return {**_GPT, "positions": 0, "embedding_norm": True}


def _mpt(config: Config) -> Fields:
    given = config.get("attn_config") or {}
    if given.get("qk_ln"):
        raise PlanInputError(
            "model.config.attn_config.qk_ln",
            True,
            "a norm of queries and keys is not known for mpt",
            "use false",
        )
    inner = int(config["d_model"]) * int(config.get("expansion_ratio") or 4)
    learned = given.get("alibi") is False
    return {
        "gated": False,
        "rotary": False,
        "positions": int(config.get("max_seq_len") or 2048) if learned else 0,
        "intermediate_size": inner,
    }


def _opt(config: Config) -> Fields:
    hidden = int(config["hidden_size"])
    _refuse(config, "word_embed_proj_dim", hidden, "an embedding of another width")
    biased = bool(config.get("enable_bias", True))
    return {
        **_GPT,
        "query_bias": biased,
        "output_bias": biased,
        "feed_forward_bias": biased,
        "positions": int(config["max_position_embeddings"]) + 2,
        "final_norm": bool(config.get("do_layer_norm_before", True)),
    }


def _falcon(config: Config) -> Fields:
    new = bool(config.get("new_decoder_architecture"))
    biased = bool(config.get("bias"))
    heads = int(config["num_attention_heads"])
    keys = heads
    if new:
        keys = int(config.get("num_kv_heads") or heads)
    elif config.get("multi_query", True):
        keys = 1
    two = new or not config.get("parallel_attn", True)
    if new and config.get("num_ln_in_parallel_attn") == 1:
        two = False
    return {
        "gated": False,
        "key_value_heads": keys,
        "intermediate_size": int(config.get("ffn_hidden_size") or 4 * int(config["hidden_size"])),
        "query_bias": biased,
        "output_bias": biased,
        "feed_forward_bias": biased,
        "norm_bias": True,
        "norms": 2 if two else 1,
    }


def _starcoder2(config: Config) -> Fields:
    biased = bool(config.get("use_bias", True))
    return {
        "gated": False,
        "query_bias": biased,
        "output_bias": biased,
        "feed_forward_bias": biased,
        "norm_bias": True,
        **_windows(config),
    }


def _stablelm(config: Config) -> Fields:
    _refuse(config, "qk_layernorm", False, "a norm of queries and keys")
    return {
        "query_bias": bool(config.get("use_qkv_bias")),
        "norm_bias": True,
        "norms": 1 if config.get("use_parallel_residual") else 2,
    }


def _cohere(config: Config) -> Fields:
    _refuse(config, "use_qk_norm", False, "a norm of queries and keys")
    return {**_llama(config), "norms": 1}


def _nemotron(config: Config) -> Fields:
    return {**_llama(config), "gated": False, "norm_bias": True}


def _arcee(config: Config) -> Fields:
    return {**_llama(config), "gated": False}


def _glm(config: Config) -> Fields:
    return {"query_bias": bool(config.get("attention_bias"))}


def _glm4(config: Config) -> Fields:
    return {**_glm(config), "norms": 4}


def _seed_oss(config: Config) -> Fields:
    return {
        "query_bias": bool(config.get("attention_bias")),
        "output_bias": bool(config.get("attention_out_bias")),
        "feed_forward_bias": bool(config.get("mlp_bias")),
    }


def _ernie4_5(config: Config) -> Fields:
    biased = bool(config.get("use_bias"))
    return {"query_bias": biased, "output_bias": biased, "feed_forward_bias": biased}


def _mixtral(config: Config) -> Fields:
    inner = int(config["intermediate_size"])
    return {
        "experts": Experts(int(config["num_local_experts"]), int(config["num_experts_per_tok"]), inner),
        **_windows(config),
    }


def _phimoe(config: Config) -> Fields:
    return {
        **_mixtral(config),
        "query_bias": bool(config.get("attention_bias")),
        "output_bias": bool(config.get("attention_bias")),
        "norm_bias": True,
        "head_bias": bool(config.get("lm_head_bias")),
    }


def _olmoe(config: Config) -> Fields:
    inner = int(config["intermediate_size"])
    return {
        **_olmo2(config),
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


def _qwen2_moe(config: Config) -> Fields:
    shared = int(config["shared_expert_intermediate_size"])
    return {
        **_windows(config),
        "query_bias": bool(config.get("qkv_bias", True)),
        "experts": _sparse(config, shared=shared, gate=True),
    }


def _qwen3_moe(config: Config) -> Fields:
    return {**_qwen3(config), "experts": _sparse(config)}


def _gpt_oss(config: Config) -> Fields:
    return {
        **_windows(config),
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


def _deepseek(config: Config) -> Fields:
    _refuse(config, "attention_bias", False, "a bias of attention")
    inner = int(config["moe_intermediate_size"])
    return {
        "latent": LatentAttention(
            query_rank=int(config.get("q_lora_rank") or 0),
            key_value_rank=int(config["kv_lora_rank"]),
            rotary_dim=int(config["qk_rope_head_dim"]),
            nope_dim=int(config["qk_nope_head_dim"]),
            value_dim=int(config["v_head_dim"]),
        ),
        "experts": Experts(
            int(config["n_routed_experts"]),
            int(config["num_experts_per_tok"]),
            inner,
            shared_intermediate_size=inner * int(config.get("n_shared_experts") or 0),
            leading_dense_layers=int(config.get("first_k_dense_replace") or 0),
        ),
    }


def _glm4_moe(config: Config) -> Fields:
    inner = int(config["moe_intermediate_size"])
    return {
        "query_bias": bool(config.get("attention_bias")),
        "head_norms": bool(config.get("use_qk_norm")),
        "experts": Experts(
            int(config["n_routed_experts"]),
            int(config["num_experts_per_tok"]),
            inner,
            shared_intermediate_size=inner * int(config.get("n_shared_experts") or 0),
            leading_dense_layers=int(config.get("first_k_dense_replace") or 0),
        ),
    }


def _llama4(config: Config) -> Fields:
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


FAMILIES: dict[str, Callable[[Config], Fields]] = {
    "arcee": _arcee,
    "bloom": _bloom,
    "codegen": _gptj,
    "cohere": _cohere,
    "cohere2": _cohere,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "ernie4_5": _ernie4_5,
    "exaone4": lambda config: {**_windows(config), "head_norms": True},
    "falcon": _falcon,
    "gemma": _llama,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "glm": _glm,
    "glm4": _glm4,
    "glm4_moe": _glm4_moe,
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt_bigcode,
    "gpt_neo": _gpt_neo,
    "gpt_neox": _gpt_neox,
    "gpt_oss": _gpt_oss,
    "gptj": _gptj,
    "granite": _llama,
    "granitemoe": _mixtral,
    "helium": _llama,
    "llama": _llama,
    "llama4_text": _llama4,
    "mistral": _llama,
    "mixtral": _mixtral,
    "mpt": _mpt,
    "nemotron": _nemotron,
    "olmo": _olmo,
    "olmo2": _olmo2,
    "olmo3": _olmo2,
    "olmoe": _olmoe,
    "opt": _opt,
    "phi": _phi,
    "phi3": _llama,
    "phimoe": _phimoe,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "seed_oss": _seed_oss,
    "smollm3": _llama,
    "stablelm": _stablelm,
    "starcoder2": _starcoder2,
}
