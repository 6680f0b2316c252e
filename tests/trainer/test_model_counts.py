"""Parameter counts of the planner against the real transformers models, on the meta device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from trainingrun.planner.models.configs import shape_of
from trainingrun.planner.models.counts import count_parameters
from trainingrun.planner.models.families import FAMILIES

# What a family's own defaults leave open.
DEFAULTS: dict[str, dict[str, Any]] = {
    "nemotron": {"num_key_value_heads": 8, "head_dim": 128},
    "deepseek_v2": {"num_experts_per_tok": 6, "moe_intermediate_size": 1536, "n_shared_experts": 2},
}
# Options and sizes that change which parameters there are.
VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}),
    ("llama", {"tie_word_embeddings": True, "head_dim": 64}),
    (
        "qwen2",
        {"num_hidden_layers": 24, "hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2},
    ),
    ("gpt2", {"n_embd": 1280, "n_layer": 36, "n_head": 20, "n_inner": 3000}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 8}),
    ("falcon", {"bias": True, "parallel_attn": False, "multi_query": False, "alibi": True}),
    ("deepseek_v2", {**DEFAULTS["deepseek_v2"], "q_lora_rank": None, "first_k_dense_replace": 1}),
    ("deepseek_v3", {"num_hidden_layers": 8, "n_routed_experts": 16, "first_k_dense_replace": 2}),
    ("qwen2_moe", {"decoder_sparse_step": 2, "num_hidden_layers": 6}),
    ("llama4_text", {"interleave_moe_layer_step": 2, "num_hidden_layers": 6, "num_local_experts": 4}),
    (
        "opt",
        {
            "do_layer_norm_before": False,
            "hidden_size": 512,
            "word_embed_proj_dim": 512,
            "num_attention_heads": 8,
        },
    ),
    ("starcoder2", {"use_bias": False}),
    ("stablelm", {"use_qkv_bias": True, "use_parallel_residual": True}),
    ("gpt_bigcode", {"multi_query": False}),
    ("phimoe", {"attention_bias": True, "lm_head_bias": True, "num_hidden_layers": 2}),
    ("mixtral", {"num_hidden_layers": 4, "num_local_experts": 16}),
)


def _count(kind: str, given: dict[str, Any]) -> tuple[int, int]:
    config = AutoConfig.for_model(kind, **given)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return count_parameters(shape_of(config.to_dict())), sum(one.numel() for one in model.parameters())


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_the_count_is_the_real_models(kind: str) -> None:
    planned, real = _count(kind, DEFAULTS.get(kind, {}))
    assert planned == real


@pytest.mark.parametrize(
    ("kind", "given"), VARIANTS, ids=lambda value: value if isinstance(value, str) else "-"
)
def test_options_change_the_count_as_they_change_the_model(kind: str, given: dict[str, Any]) -> None:
    planned, real = _count(kind, given)
    assert planned == real
