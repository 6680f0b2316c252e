"""Parameter counts against the published ones, and against adding up stages and shards."""

from __future__ import annotations

import pytest
from tests.operator.planner_builders import LLAMA_2_7B, LLAMA_2_70B, LLAMA_3_8B, LLAMA_32_1B, a_model

from trainingrun.planner.parameters import (
    count_parameters,
    layer_parameters,
    matmul_parameters,
    stage_parameters,
)
from trainingrun.planner.types import ModelShape


@pytest.mark.parametrize(
    ("model", "published"),
    [
        (LLAMA_2_7B, 6_738_415_616),
        (LLAMA_2_70B, 68_976_648_192),
        (LLAMA_3_8B, 8_030_261_248),
        (LLAMA_32_1B, 1_235_814_400),
    ],
    ids=["Llama-2-7B", "Llama-2-70B", "Llama-3-8B", "Llama-3.2-1B"],
)
def test_counts_are_those_that_were_published(model: ModelShape, published: int) -> None:
    assert count_parameters(model) == published


def test_stages_add_up_to_the_whole_model() -> None:
    stages = [stage_parameters(LLAMA_3_8B, pipeline=4, stage=index, tensor=1) for index in range(4)]
    assert sum(stage.total for stage in stages) == count_parameters(LLAMA_3_8B)
    assert stages[1].root == 0


def test_tensor_shards_add_up_to_the_whole_layer_but_for_the_norms() -> None:
    norms = 2 * LLAMA_3_8B.hidden_size
    assert 4 * (layer_parameters(LLAMA_3_8B, tensor=4) - norms) == layer_parameters(LLAMA_3_8B) - norms


def test_a_tied_head_counts_once_but_multiplies_all_the_same() -> None:
    tied, untied = a_model(tied_embeddings=True), a_model()
    assert count_parameters(untied) - count_parameters(tied) == 256 * 64
    assert matmul_parameters(untied, 2, head=True) == matmul_parameters(tied, 2, head=True)


def test_a_tied_head_on_another_stage_is_a_second_copy() -> None:
    stages = [stage_parameters(LLAMA_32_1B, pipeline=2, stage=index, tensor=1) for index in range(2)]
    extra = sum(stage.total for stage in stages) - count_parameters(LLAMA_32_1B)
    assert extra == LLAMA_32_1B.vocabulary_size * LLAMA_32_1B.hidden_size


def test_zbv_has_embedding_and_head_on_the_first_rank() -> None:
    first, last = (
        stage_parameters(a_model(layers=4), pipeline=2, stage=index, tensor=1, head=0) for index in range(2)
    )
    assert (first.root, last.root) == (256 * 64 + 64 + 256 * 64, 0)


def test_the_fullest_tensor_rank_has_the_rows_that_are_left_over() -> None:
    stage = stage_parameters(a_model(vocabulary_size=257, layers=1), pipeline=1, stage=0, tensor=2)
    assert stage.root == 129 * 64 + 64 + 129 * 64
