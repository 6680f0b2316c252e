"""Every family trains as transformers trains it, over the axes that treat it differently from Llama."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from tests.trainer import layouts, parity
from tests.trainer.comparing import compare, initial_weights
from tests.trainer.worlds import run_world

from trainer.families import FAMILIES, is_norm

LAYOUTS: dict[str, dict[str, Any]] = {
    "llama": {"pipeline": 2, "schedule": "ZBV", "context": 2},
    "qwen2": {"tensor": 2, "shard": 2},
    "qwen3": {"tensor": 2, "pipeline": 2, "schedule": "Interleaved1F1B"},
    "mistral": {"context": 2, "tensor": 2},
    "gemma": {"pipeline": 2, "tensor": 2},
    "gpt2": {"tensor": 2, "shard": 2},
}


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_a_family_trains_as_transformers_trains_it(kind: str) -> None:
    found = compare(kind, 5, **LAYOUTS[kind])
    assert found.loss <= 1e-9
    assert found.norm <= 1e-9
    assert found.parameters <= 1e-8


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_random_weights_have_the_distribution_of_transformers(kind: str) -> None:
    torch.manual_seed(0)
    model = parity.tiny_model(kind)
    theirs = dict(parity.plain_model(model, float64_norms=False).named_parameters())
    for name, ours in initial_weights(model).items():
        expected = theirs[name].detach()
        if is_norm(name) or name.endswith("bias"):
            assert torch.equal(ours.view(expected.shape), expected), name
            continue
        spread = 4 / math.sqrt(2 * ours.numel())  # of a standard deviation that is estimated from so many
        assert float(ours.std()) == pytest.approx(float(expected.std()), rel=2 * spread), name
        assert abs(float(ours.mean())) < 5 * float(expected.std()) / math.sqrt(ours.numel()), name


def test_a_rank_finds_the_modules_of_every_family_loaded() -> None:
    """In the warm server: what is loaded lazily would be loaded anew by every rank that starts."""
    names = [f"transformers.models.{kind}.modeling_{kind}" for kind in FAMILIES]
    code = f"import sys, trainer.rank; sys.exit(not set({names!r}) <= set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}).returncode == 0
    )


def parts(rank: int, rung: Any, model: dict[str, Any]) -> dict[str, torch.Tensor]:
    _, _, parameters = layouts.build(rank, rung, model, torch.float32)
    return {p.name: layouts.local(p.cut).detach().clone() for p in parameters}


def test_initial_weights_are_the_same_on_data_ranks_and_different_on_tensor_ranks() -> None:
    rung = layouts.a_rung(replicate=2, tensor=2)
    first, other_part, replica, _ = run_world(parts, 4, rung, parity.tiny_model("qwen2"))
    for name, part in first.items():
        assert torch.equal(part, replica[name]), name
        drawn = not is_norm(name) and not name.endswith("bias")
        assert torch.equal(part, other_part[name]) is not drawn, name


def test_hidden_states_may_be_spread_over_tensor_ranks_by_tokens() -> None:
    """Sequence parallelism: norms, residuals and learned positions see a rank's own tokens only."""
    for kind, axes in (("gpt2", {"pipeline": 2}), ("qwen3", {"context": 2})):
        found = compare(kind, 5, tensor=2, sequence_parallel=True, **axes)
        assert max(found.loss, found.norm, found.parameters) <= 1e-9
