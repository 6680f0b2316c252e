"""The loss weighs tokens, wherever they are computed, and attention stays within documents."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.trainer import layouts, parity
from tests.trainer.worlds import run_world
from torch import nn

from trainer.architecture import model_config
from trainer.errors import TrainingDiverged
from trainer.initial import fill_initial
from trainer.losses import token_loss_sum
from trainer.mesh import build_axes
from trainer.parallelise import parallelise
from trainer.parameters import Parameter
from trainer.stage import build_stages
from trainer.step import StepRunner, Votes


def logits_for(losses: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits over two tokens and labels `[1, n]` that have exactly these cross entropies."""
    gaps = torch.tensor([[0.0, math.log(math.expm1(loss))] for loss in losses], dtype=torch.float64)
    return gaps.unsqueeze(0), torch.zeros(1, len(losses), dtype=torch.int64)


def test_micro_batches_of_different_length_weigh_by_tokens() -> None:
    total = sum(float(token_loss_sum(*logits_for(losses))) for losses in ([1.0, 1.0, 1.0], [5.0]))
    assert total / 4 == pytest.approx(2.0)  # a mean of means gives 3.0


def test_labels_are_shifted_once() -> None:
    logits = torch.zeros(1, 3, 4, dtype=torch.float64)
    logits[0, 0, 1] = logits[0, 1, 2] = 10.0
    labels = torch.tensor([[1, 2, -100]])
    assert float(token_loss_sum(logits, labels)) / 2 == pytest.approx(
        math.log(1 + 3 * math.exp(-10)), rel=1e-9
    )


def test_a_batch_without_weighing_labels_has_loss_zero() -> None:
    logits = torch.randn(2, 3, 5, requires_grad=True)
    loss = token_loss_sum(logits, torch.full((2, 3), -100))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert not logits.grad.any()


def cut_loss(rank: int, logits: torch.Tensor, labels: torch.Tensor) -> tuple[float, torch.Tensor, int]:
    chunk = -(-logits.shape[-1] // 2)
    mine = logits[..., rank * chunk : (rank + 1) * chunk].clone().requires_grad_()
    loss = token_loss_sum(mine, labels, group=dist.group.WORLD, offset=rank * chunk)
    (loss * 0.5).backward()
    return float(loss.detach()), mine.grad, rank


def test_logits_cut_by_vocabulary_give_the_same_loss_and_gradient() -> None:
    torch.manual_seed(0)
    logits = (20 * torch.randn(2, 5, 7, dtype=torch.float64)).requires_grad_()
    labels = torch.tensor([[0, 3, 4, -100, 6], [-100, 1, 2, 5, 3]])
    expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    (expected * 0.5).backward()
    ranks = run_world(cut_loss, 2, logits.detach(), labels)
    assert [loss for loss, _, _ in ranks] == pytest.approx([float(expected.detach())] * 2, abs=1e-12)
    assert torch.allclose(torch.cat([gradient for _, gradient, _ in ranks], dim=-1), logits.grad, atol=1e-14)


class FixedLosses:
    """Stands for a model whose token losses are known."""

    def __init__(self, losses: list[float]) -> None:
        self._losses = losses

    def run(self, batches: Any, *, weight: float) -> tuple[float, float]:
        return weight * sum(self._losses), 0.0


class CountsUpdates:
    """Stands for an optimizer of one parameter."""

    def __init__(self) -> None:
        live = nn.Parameter(torch.zeros(1))
        self.parameters = [Parameter("lm_head.weight", live.detach(), live)]
        self.updates = 0

    def update(self, gradients: Any, *, scale: float, learning_rate: float) -> None:
        self.updates += 1


def step_of_known_losses(rank: int, losses: list[list[float]]) -> tuple[float, int, bool]:
    axes = build_axes(layouts.a_rung(replicate=len(losses)), rank)
    labels = torch.zeros(1, len(losses[rank]), dtype=torch.int64)
    batch = parity.Batch(labels, labels, labels, labels)
    optimizer = CountsUpdates()
    runner = StepRunner(FixedLosses(losses[rank]), optimizer, axes, max_grad_norm=None, seed=0)  # type: ignore[arg-type]
    result = runner.run(1, [batch], learning_rate=0.1, votes=Votes())
    return result.loss, result.tokens, bool(optimizer.updates)


def test_data_ranks_with_different_token_counts_weigh_by_tokens() -> None:
    losses = [[1.0, 1.0, 1.0], [5.0]]
    assert run_world(step_of_known_losses, 2, losses) == [(2.0, 4, True)] * 2  # a mean over ranks gives 3.0


def test_a_step_without_weighing_tokens_changes_nothing() -> None:
    loss, tokens, updated = step_of_known_losses(0, [[]])
    assert (loss, tokens, updated) == (0.0, 0, False)


def test_a_loss_that_is_not_finite_is_an_error_and_not_a_step() -> None:
    with pytest.raises(TrainingDiverged, match=r"step 1: loss nan.*learningRate"):
        step_of_known_losses(0, [[math.nan]])


def tiny_stage() -> Any:
    axes = build_axes(layouts.a_rung(), 0)
    config = model_config(parity.tiny_model(initializer_range=0.2), parity.VOCABULARY)
    (stage,) = build_stages(config, axes, torch.float64, sequence_length=parity.SEQUENCE, float64_norms=True)
    fill_initial(parallelise([stage], axes), config, seed=3)
    return stage


def loss_of(stage: Any, rows: list[list[torch.Tensor]]) -> tuple[float, int]:
    batch = parity.packed(rows)
    logits = stage(batch.input_ids, batch.position_ids, batch.document_ids)
    return float(token_loss_sum(logits, batch.labels).detach()), int((batch.labels != -100).sum())


def test_packed_documents_have_the_loss_that_they_have_alone() -> None:
    stage = tiny_stage()
    first, second = torch.tensor([5, 9, 2]), torch.tensor([7, 7, 1, 30, 4])
    (alone_first, n), (alone_second, m) = loss_of(stage, [[first]]), loss_of(stage, [[second]])
    together, targets = loss_of(stage, [[first, second]])
    assert together == pytest.approx(alone_first + alone_second, abs=1e-9)
    assert targets == n + m == 6


def test_no_token_of_a_document_reaches_another() -> None:
    stage = tiny_stage()
    first, second = torch.tensor([5, 9, 2]), torch.tensor([7, 7, 1, 30, 4])
    before, after = parity.packed([[first, second]]), parity.packed([[first + 11, second]])
    outputs = [stage(b.input_ids, b.position_ids, b.document_ids)[0, 3:8] for b in (before, after)]
    assert torch.equal(*outputs)


def test_a_row_of_one_document_needs_no_mask_and_gives_the_same() -> None:
    stage = tiny_stage()
    batch = parity.packed([[torch.arange(32)]])
    plain = stage(batch.input_ids, batch.position_ids, batch.document_ids)
    both = parity.packed([[torch.arange(32)], [torch.arange(3), torch.arange(4)]])  # the second forces a mask
    masked = stage(both.input_ids, both.position_ids, both.document_ids)
    assert torch.allclose(plain[0], masked[0], atol=1e-12)
