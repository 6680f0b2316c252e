"""Operations of a token: rules that everybody knows, and agreement with the time model's own sums."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.operator.test_models_configs import DEEPSEEK_V3, GPT_OSS, LLAMA_8B, MIXTRAL

from trainingrun.planner.cost import compute
from trainingrun.planner.models.configs import shape_of
from trainingrun.planner.models.flops import flops_per_token

LLAMA = shape_of(LLAMA_8B)


def test_without_attention_it_is_six_times_the_weights_of_products() -> None:
    weights = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 128256 * 4096
    assert flops_per_token(LLAMA, 8192, attention="none") == 6 * weights


def test_attention_adds_twelve_hidden_sizes_for_each_token_that_is_looked_at() -> None:
    without = flops_per_token(LLAMA, 8192, attention="none")
    assert flops_per_token(LLAMA, 8192, attention="whole") - without == 12 * 8192 * 4096 * 32
    assert flops_per_token(LLAMA, 8192, attention="causal") - without == 6 * 8192 * 4096 * 32


def test_recomputed_layers_count_a_third_more_and_the_head_does_not() -> None:
    head = 6 * 128256 * 4096
    once = flops_per_token(LLAMA, 4096) - head
    assert flops_per_token(LLAMA, 4096, recomputed=True) - head == pytest.approx(once * 4 / 3)


def test_a_gpt_with_recomputation_needs_what_the_published_formula_says() -> None:
    """96 s L h^2 (1 + s / 6h + V / 16 L h) for each sequence of s tokens."""
    hidden, layers, length, vocabulary = 6144, 40, 2048, 51200
    model = replace(
        LLAMA, hidden_size=hidden, layers=layers, attention_heads=48, key_value_heads=48, head_dim=128,
        intermediate_size=4 * hidden, gated=False, vocabulary_size=vocabulary,
    )  # fmt: skip
    formula = (
        96 * length * layers * hidden**2 * (1 + length / (6 * hidden) + vocabulary / (16 * layers * hidden))
    )
    assert length * flops_per_token(model, length, attention="whole", recomputed=True) == pytest.approx(
        formula
    )


def test_windows_bound_what_is_looked_at() -> None:
    model = shape_of(GPT_OSS)
    open_windows = replace(model, sliding_window=0, sliding_layers=0)
    assert flops_per_token(model, 64) == flops_per_token(open_windows, 64)
    assert flops_per_token(model, 8192) < flops_per_token(open_windows, 8192)


@pytest.mark.parametrize(
    "config", [LLAMA_8B, MIXTRAL, DEEPSEEK_V3, GPT_OSS], ids=lambda config: config["model_type"]
)
def test_the_time_model_counts_the_same(config: dict[str, object]) -> None:
    model = shape_of(config)
    assert compute.flops_per_token(model, 4096) == pytest.approx(flops_per_token(model, 4096), rel=2e-3)


def test_another_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="sparse"):
        flops_per_token(LLAMA, 4096, attention="sparse")
