"""Traps of parallel training that give wrong numbers silently, each with a test that falls into it or around it."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.trainer import layouts, parity
from tests.trainer.comparing import a_recipe, compare
from tests.trainer.worlds import TIMEOUT_SECONDS, run_world
from torch.distributed.tensor.placement_types import _StridedShard

from trainer.attention import attention_mask
from trainer.clip import holders
from trainer.executor import Executor


def exact(*arguments: Any, **axes: Any) -> None:
    found = compare(*arguments, **axes)
    assert found.loss <= 1e-9
    assert found.norm <= 1e-9
    assert found.parameters <= 1e-8


def sums_of_head_norms(rank: int, model: dict[str, Any]) -> list[int]:
    _, _, parameters = layouts.build(rank, layouts.a_rung(tensor=2), model, torch.float64)
    return [len(p.sums) for p in parameters if p.name.endswith(("q_norm.weight", "k_norm.weight"))]


def test_norms_of_cut_heads_sum_their_gradients_over_the_tensor_axis() -> None:
    """A rank has the gradient of its own heads only; without the sum the loss is off by 1e-3."""
    assert run_world(sums_of_head_norms, 2, parity.tiny_model("qwen3")) == [[1] * 8] * 2
    exact("qwen3", 5, tensor=2)


def tied_still(rank: int, rung: Any, model: dict[str, Any]) -> list[bool]:
    _, stages, _ = layouts.build(rank, rung, model, torch.float64)
    return [stage.lm_head.weight is stage.embedding.weight for stage in stages]


def test_cutting_does_not_untie_the_head() -> None:
    model = parity.tiny_model(tie_word_embeddings=True)
    for axes in ({"tensor": 2}, {"shard": 2}):
        assert run_world(tied_still, 2, layouts.a_rung(**axes), model) == [[True]] * 2
    exact("special", 5, tensor=2, shard=2)


@pytest.mark.parametrize("axes", [{"pipeline": 2}, {"pipeline": 4, "micro_batch": 1}], ids=str)
def test_both_copies_of_a_tied_embedding_get_both_gradients_and_count_once_in_the_norm(
    axes: dict[str, int],
) -> None:
    """Four stages: the two ends are not the whole pipeline."""
    exact("special", 5, **axes)


def test_a_tied_embedding_is_one_parameter_where_a_rank_has_both_ends() -> None:
    exact("special", 5, pipeline=2, schedule="ZBV", shard=2)


def holders_of(rank: int, model: dict[str, Any]) -> dict[str, tuple[int, bool]]:
    axes, _, parameters = layouts.build(rank, layouts.a_rung(tensor=2, shard=2), model, torch.float64)
    return {
        p.name: (holders(p.cut, axes), any(isinstance(one, _StridedShard) for one in p.cut.placements))  # type: ignore[attr-defined]
        for p in parameters
    }


def test_strided_shards_and_whole_norms_count_once_in_the_norm() -> None:
    """`_StridedShard.is_shard()` is False, and norms live on a smaller mesh than matrices."""
    (found, *_) = run_world(holders_of, 4, parity.tiny_model())
    layer = "model.layers.0"
    assert found[f"{layer}.self_attn.q_proj.weight"] == (1, True)
    assert found[f"{layer}.input_layernorm.weight"] == (2, False)
    exact("qwen2", 5, tensor=2, shard=2)


def test_later_stages_know_the_positions_of_their_own_tokens() -> None:
    """With tokens spread over ranks: rotary positions in each stage, learned ones in the first."""
    exact("qwen3", 5, pipeline=2, context=2)
    exact("gpt2", 5, pipeline=2, context=2)


def test_the_queries_of_later_tokens_are_never_taken_for_the_first_ones() -> None:
    """Attention without a mask aligns queries and keys at their first tokens."""
    one_document = torch.zeros(1, 8, dtype=torch.int64)
    assert attention_mask(one_document, None) is None
    mask = attention_mask(one_document, None, rows=slice(4, 8))
    assert mask is not None
    assert torch.equal(mask[0, 0], torch.ones(8, 8).tril().bool()[4:])


def test_a_window_reaches_back_within_its_document_only() -> None:
    documents = torch.tensor([[0, 0, 0, 0, 1, 1]])
    mask = attention_mask(documents, 2)
    assert mask is not None
    seen = [[column for column in range(6) if mask[0, 0, row, column]] for row in range(6)]
    assert seen == [[0], [0, 1], [1, 2], [2, 3], [4], [4, 5]]
    assert attention_mask(documents[:, :4], 4) is None  # longer than the sequence: plain causal


class _Gone(Exception):
    pass


def left_in_the_middle(rank: int) -> tuple[float, str]:
    """The last stage closes its connections within the step, as the end of its process would; (seconds, what is
    seen).
    """
    rung = layouts.a_rung(pipeline=2)
    recipe = a_recipe(steps=1)
    axes, stages, parameters = layouts.build(rank, rung, recipe.model, recipe.dtype)
    executor = Executor(stages, parameters, axes, rung, sequence_length=parity.SEQUENCE)

    def leave(*_: Any) -> None:
        dist.destroy_process_group()
        raise _Gone

    if rank == 1:
        stages[0].register_forward_pre_hook(leave)
    batches = parity.share(
        1, global_batch=8, data_rank=0, data_degree=1, micro_batch=2, accumulation=rung.accumulation
    )
    started = time.monotonic()
    try:
        executor.run(batches, weight=1.0)
    except RuntimeError as error:
        return time.monotonic() - started, str(error)
    return 0.0, ""


def test_a_rank_that_ends_inside_a_pipeline_step_is_noticed_by_its_neighbour_before_any_timeout() -> None:
    (seconds, said), _ = run_world(left_in_the_middle, 2)
    assert said
    assert seconds < TIMEOUT_SECONDS / 2
