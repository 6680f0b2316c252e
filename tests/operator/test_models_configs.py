"""Shapes from transformers configs, and their parameter counts against the published ones."""

from __future__ import annotations

from typing import Any

import pytest

from trainingrun.planner.errors import PlanInputError
from trainingrun.planner.models.configs import shape_of
from trainingrun.planner.models.counts import active_parameters, count_parameters, embedding, final, stack

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
MIXTRAL = {
    **LLAMA_8B,
    "model_type": "mixtral",
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "tie_word_embeddings": False,
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "vocab_size": 201088,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (LLAMA_8B, 8_030_261_248),
        (GPT2, 124_439_808),
        (MIXTRAL, 46_702_792_704),
        (DEEPSEEK_V3, 671_026_404_352),
        (GPT_OSS, 116_829_156_672),
    ],
    ids=["llama-3-8b", "gpt2", "mixtral-8x7b", "deepseek-v3", "gpt-oss-120b"],
)
def test_counts_are_those_that_were_published(config: dict[str, Any], published: int) -> None:
    assert count_parameters(shape_of(config)) == published


def test_a_token_passes_few_of_many_experts() -> None:
    assert active_parameters(shape_of(DEEPSEEK_V3)) == pytest.approx(37.5e9, rel=0.01)
    assert active_parameters(shape_of(LLAMA_8B)) == count_parameters(shape_of(LLAMA_8B))


def test_leading_layers_of_deepseek_are_dense() -> None:
    model = shape_of(DEEPSEEK_V3)
    assert stack(model, 0, 3).routed == 0
    assert stack(model, 0, 61).routed == stack(model, 3, 61).routed > 0


def test_sliding_layers_are_counted_from_the_config() -> None:
    model = shape_of(GPT_OSS)
    assert (model.sliding_window, model.sliding_layers) == (128, 18)


def test_stages_and_tensor_shards_add_up_to_the_whole() -> None:
    model = shape_of(DEEPSEEK_V3)
    stages = [stack(model, begin, begin + 1).total for begin in range(61)]
    assert sum(stages) + embedding(model) + final(model) == count_parameters(model)
    whole, cut = stack(model, 3, 61), stack(model, 3, 61, expert=8)
    assert cut.dense == whole.dense
    assert 8 * cut.routed == whole.routed


def test_what_is_not_known_is_refused_with_the_reason() -> None:
    with pytest.raises(PlanInputError, match="mamba"):
        shape_of({**LLAMA_8B, "model_type": "mamba"})
    with pytest.raises(PlanInputError, match="vocab_size"):
        shape_of({**LLAMA_8B, "vocab_size": None})
    with pytest.raises(PlanInputError, match="kv_lora_rank"):
        shape_of({key: value for key, value in DEEPSEEK_V3.items() if key != "kv_lora_rank"})
    with pytest.raises(PlanInputError, match="word_embed_proj_dim"):
        shape_of({**LLAMA_8B, "model_type": "opt", "word_embed_proj_dim": 512})
    with pytest.raises(PlanInputError, match="encoder"):
        shape_of({**LLAMA_8B, "is_encoder_decoder": True})
