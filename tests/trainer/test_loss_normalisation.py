"""A token weighs the same wherever it is computed: micro-batches, ranks and documents change nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.trainer import layouts, parity
from tests.trainer.numerics import Setting, furthest, train
from tests.trainer.worlds import run_world

from trainer.losses import IGNORED, token_loss_sum


def losses_as_logits(losses: list[float]) -> torch.Tensor:
    """Logits over two tokens `[1, n, 2]` of which the first has exactly these cross entropies."""
    rows = [[0.0, math.log(math.expm1(loss))] for loss in losses]
    return torch.tensor([rows], dtype=torch.float64)


def mean_over(micro_batches: list[list[float]]) -> float:
    """As the step does it: sums of token losses, divided once by the tokens of all."""
    labels = [torch.zeros(1, len(losses), dtype=torch.int64) for losses in micro_batches]
    tokens = sum(one.numel() for one in labels)
    sums = [token_loss_sum(losses_as_logits(m), one) for m, one in zip(micro_batches, labels, strict=True)]
    return sum(float(one) for one in sums) / tokens


def test_accumulation_divides_once_by_all_tokens() -> None:
    assert mean_over([[1.0, 1.0, 1.0], [5.0]]) == pytest.approx(2.0, abs=1e-5)  # mean of means: 3.0


def test_any_accumulation_of_the_same_batch_trains_the_same() -> None:
    """The rows are ragged, so that a mean of micro-batches' means would differ."""
    seen = [train(0, layouts.a_rung(micro_batch=size), Setting(steps=4)) for size in (8, 4, 2, 1)]
    for other in seen[1:]:
        assert other.losses == pytest.approx(seen[0].losses, abs=1e-12)
        assert other.norms == pytest.approx(seen[0].norms, abs=1e-12)
        assert furthest(other.weights, seen[0].weights) < 1e-11


@pytest.mark.parametrize("axes", [{"replicate": 2}, {"shard": 2}, {"pipeline": 2}], ids=str)
def test_ranks_with_different_token_counts_train_as_one_rank_does(axes: dict[str, int]) -> None:
    counts = [
        [
            sum(int((batch.labels != IGNORED).sum()) for batch in share)
            for share in (
                parity.share(1, global_batch=8, data_rank=r, data_degree=2, micro_batch=2, accumulation=2)
                for r in (0, 1)
            )
        ]
    ]
    assert counts[0][0] != counts[0][1], "the data must be ragged over ranks"
    rung = layouts.a_rung(**axes)
    one = train(0, layouts.a_rung(), Setting(steps=4))
    for rank in run_world(train, rung.world, rung, Setting(steps=4)):
        assert rank.losses == pytest.approx(one.losses, abs=1e-12)
        assert rank.norms == pytest.approx(one.norms, abs=1e-12)


def targets_of(batch: Any) -> int:
    return int((batch.labels != IGNORED).sum())


def test_labels_are_shifted_once_and_their_number_is_counted_after_the_shift() -> None:
    logits = torch.zeros(1, 3, 4, dtype=torch.float64)
    logits[0, 0, 1] = logits[0, 1, 2] = 10.0  # the next id, at each of the first two positions
    row = parity.packed([[torch.tensor([0, 1, 2])]])
    labels = row.labels[:, :3]
    assert labels.tolist() == [[1, 2, IGNORED]]
    assert targets_of(row) == 2
    loss = float(token_loss_sum(logits, labels)) / targets_of(row)
    assert loss == pytest.approx(
        math.log(1 + 3 * math.exp(-10)), rel=1e-9
    )  # 1.362e-4; without the shift about 10


def test_a_document_of_n_tokens_has_n_minus_1_targets() -> None:
    documents = [torch.arange(5), torch.arange(3), torch.arange(2)]
    assert targets_of(parity.packed([documents])) == 4 + 2 + 1


def test_when_nothing_weighs_the_loss_is_zero_and_never_not_a_number() -> None:
    logits = torch.randn(1, 3, 4, requires_grad=True)
    nothing = torch.full((1, 3), IGNORED)
    assert math.isnan(float(torch.nn.functional.cross_entropy(logits[0], nothing[0])))  # torch's mean
    total = token_loss_sum(logits, nothing)
    total.backward()
    assert float(total.detach()) == 0.0
    assert not logits.grad.any()
