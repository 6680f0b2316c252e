"""What families without experts do differently from Llama, from their configs. One function each; `families` has
the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainingrun.planner.errors import PlanInputError

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


def refuse(config: Config, key: str, allowed: object, reason: str) -> None:
    value = config.get(key)
    if value is not None and value != allowed:
        raise PlanInputError(
            f"model.config.{key}",
            value,
            f"{reason} is not known for {config['model_type']}",
            f"use {allowed}",
        )


def windows(config: Config) -> Fields:
    """How many layers look back only so far."""
    window = config.get("sliding_window")
    if not window or config.get("use_sliding_window") is False:
        return {}
    kinds = config.get("layer_types")
    layers = int(config["num_hidden_layers"])
    sliding = sum(kind == "sliding_attention" for kind in kinds) if kinds else layers
    return {"sliding_window": int(window), "sliding_layers": sliding}


def llama(config: Config) -> Fields:
    biased = bool(config.get("attention_bias"))
    return {
        "query_bias": biased,
        "output_bias": biased,
        "feed_forward_bias": bool(config.get("mlp_bias")),
        **windows(config),
    }


def qwen2(config: Config) -> Fields:
    return {"query_bias": True, **windows(config)}


def qwen3(config: Config) -> Fields:
    return {**llama(config), "head_norms": True}


def gemma2(config: Config) -> Fields:
    return {**llama(config), "norms": 4}


def gemma3(config: Config) -> Fields:
    return {**llama(config), "norms": 4, "head_norms": True}


def gpt2(config: Config) -> Fields:
    refuse(config, "add_cross_attention", False, "attention to another sequence")
    return dict(_GPT)


def gpt_bigcode(config: Config) -> Fields:
    return {**_GPT, **({"key_value_heads": 1} if config.get("multi_query", True) else {})}


def gpt_neo(config: Config) -> Fields:
    kinds = config.get("attention_layers") or []
    sliding = sum(kind == "local" for kind in kinds)
    return {
        **_GPT,
        "query_bias": False,
        "sliding_window": int(config.get("window_size") or 0) if sliding else 0,
        "sliding_layers": sliding,
    }


def gptj(config: Config) -> Fields:
    return {
        "gated": False,
        "feed_forward_bias": True,
        "norm_bias": True,
        "norms": 1,
        "head_bias": True,
    }


def gpt_neox(config: Config) -> Fields:
    biased = bool(config.get("attention_bias", True))
    return {**_GPT, "rotary": True, "query_bias": biased, "output_bias": biased}


def phi(config: Config) -> Fields:
    refuse(config, "qk_layernorm", False, "a norm of queries and keys")
    return {**_GPT, "rotary": True, "norms": 1, "head_bias": True}


def olmo(config: Config) -> Fields:
    return {**llama(config), "norm_weights": False}


def olmo2(config: Config) -> Fields:
    return {**llama(config), "projection_norms": True}


def bloom(config: Config) -> Fields:
    return {**_GPT, "positions": 0, "embedding_norm": True}


def mpt(config: Config) -> Fields:
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


def opt(config: Config) -> Fields:
    hidden = int(config["hidden_size"])
    refuse(config, "word_embed_proj_dim", hidden, "an embedding of another width")
    biased = bool(config.get("enable_bias", True))
    return {
        **_GPT,
        "query_bias": biased,
        "output_bias": biased,
        "feed_forward_bias": biased,
        "positions": int(config["max_position_embeddings"]) + 2,
        "final_norm": bool(config.get("do_layer_norm_before", True)),
    }


def falcon(config: Config) -> Fields:
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


def starcoder2(config: Config) -> Fields:
    biased = bool(config.get("use_bias", True))
    return {
        "gated": False,
        "query_bias": biased,
        "output_bias": biased,
        "feed_forward_bias": biased,
        "norm_bias": True,
        **windows(config),
    }


def stablelm(config: Config) -> Fields:
    refuse(config, "qk_layernorm", False, "a norm of queries and keys")
    return {
        "query_bias": bool(config.get("use_qkv_bias")),
        "norm_bias": True,
        "norms": 1 if config.get("use_parallel_residual") else 2,
    }


def cohere(config: Config) -> Fields:
    refuse(config, "use_qk_norm", False, "a norm of queries and keys")
    return {**llama(config), "norms": 1}


def nemotron(config: Config) -> Fields:
    return {**llama(config), "gated": False, "norm_bias": True}


def arcee(config: Config) -> Fields:
    return {**llama(config), "gated": False}


def glm(config: Config) -> Fields:
    return {"query_bias": bool(config.get("attention_bias"))}


def glm4(config: Config) -> Fields:
    return {**glm(config), "norms": 4}


def seed_oss(config: Config) -> Fields:
    return {
        "query_bias": bool(config.get("attention_bias")),
        "output_bias": bool(config.get("attention_out_bias")),
        "feed_forward_bias": bool(config.get("mlp_bias")),
    }


def ernie4_5(config: Config) -> Fields:
    biased = bool(config.get("use_bias"))
    return {"query_bias": biased, "output_bias": biased, "feed_forward_bias": biased}
