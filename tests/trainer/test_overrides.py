"""z-loss, the average of the weights, layers computed twice, and the implementations of attention."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.trainer import layouts
from tests.trainer.numerics import Seen, Setting, furthest, train
from tests.trainer.test_core_config import a_spec, refusal
from tests.trainer.worlds import run_world
from torch import nn

from trainer.config import check_rung, read_config
from trainer.ema import Ema
from trainer.errors import ConfigError
from trainer.losses import IGNORED
from trainer.parameters import Parameter
from trainer.z_loss import z_loss_sum


@pytest.mark.parametrize(("logit", "expected"), [(0.0, 4.8045e-5), (10.0, 0.0114343)])
def test_the_z_loss_is_the_squared_logarithm_of_the_denominator(logit: float, expected: float) -> None:
    logits = torch.full((1, 1, 2), logit, dtype=torch.float64)
    labels = torch.zeros(1, 1, dtype=torch.int64)
    assert 1e-4 * float(z_loss_sum(logits, labels)) == pytest.approx(expected, rel=1e-5)


def test_tokens_that_weigh_nothing_have_no_z_loss() -> None:
    logits = torch.randn(1, 3, 5, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[1, IGNORED, 2]])
    total = z_loss_sum(logits, labels)
    total.backward()
    assert float(total.detach()) == pytest.approx(
        float(torch.logsumexp(logits, -1).square()[0, [0, 2]].sum().detach())
    )
    assert not logits.grad[0, 1].any()
    assert logits.grad[0, 0].any()


def cut_z_loss(rank: int, logits: torch.Tensor, labels: torch.Tensor) -> tuple[float, torch.Tensor]:
    chunk = -(-logits.shape[-1] // 2)
    mine = logits[..., rank * chunk : (rank + 1) * chunk].clone().requires_grad_()
    total = z_loss_sum(mine, labels, group=dist.group.WORLD)
    (0.5 * total).backward()
    return float(total.detach()), mine.grad


def test_logits_cut_by_vocabulary_have_the_same_z_loss_and_gradient() -> None:
    torch.manual_seed(0)
    logits = (20 * torch.randn(2, 5, 7, dtype=torch.float64)).requires_grad_()
    labels = torch.tensor([[0, 3, 4, IGNORED, 6], [IGNORED, 1, 2, 5, 3]])
    expected = z_loss_sum(logits, labels)
    (0.5 * expected).backward()
    ranks = run_world(cut_z_loss, 2, logits.detach(), labels)
    assert [total for total, _ in ranks] == pytest.approx([float(expected.detach())] * 2, rel=1e-12)
    assert torch.allclose(torch.cat([gradient for _, gradient in ranks], -1), logits.grad, atol=1e-12)


def test_the_z_loss_is_told_beside_the_loss_and_changes_the_gradient() -> None:
    plain, with_z = (train(0, layouts.a_rung(), Setting(z_loss=c)) for c in (0.0, 0.1))
    assert plain.losses[0] == with_z.losses[0]
    # Logits are small at first, so that log Z is about ln V.
    assert with_z.z_losses[0] == pytest.approx(0.1 * math.log(512) ** 2, rel=0.05)
    assert plain.z_losses == [0.0] * 5
    assert plain.norms[0] != with_z.norms[0]


@pytest.mark.parametrize("axes", [{"tensor": 2}, {"pipeline": 2}, {"shard": 2}], ids=str)
def test_every_axis_has_the_same_z_loss_and_average(axes: dict[str, int]) -> None:
    setting = Setting(z_loss=0.1, ema_decay=0.9)
    one = train(0, layouts.a_rung(), setting)
    rung = layouts.a_rung(**axes)
    ranks = run_world(train, rung.world, rung, setting)
    assert ranks[0].z_losses == pytest.approx(one.z_losses, abs=1e-9)
    assert ranks[0].losses == pytest.approx(one.losses, abs=1e-9)
    averages = {name: tensor for seen in ranks for name, tensor in seen.averages.items()}
    assert averages.keys() == one.averages.keys() == {f"ema.{name}" for name in one.weights}
    assert furthest(averages, one.averages) < 1e-8


def a_weight(value: float, *, frozen: bool = False) -> Parameter:
    live = nn.Parameter(torch.full((2,), value, dtype=torch.float64), requires_grad=not frozen)
    return Parameter("frozen.weight" if frozen else "norm.weight", live.detach(), live)


def test_the_average_moves_by_one_minus_decay_of_the_difference() -> None:
    weight = a_weight(1.0)
    ema = Ema([weight], 0.9)
    ema.start()
    assert torch.equal(ema.tensors()["ema.norm.weight"], weight.cut)
    weight.cut.fill_(2.0)
    ema.update()
    assert torch.allclose(ema.tensors()["ema.norm.weight"], torch.full((2,), 1.1, dtype=torch.float64))


def test_frozen_parameters_have_no_average() -> None:
    assert set(Ema([a_weight(1.0), a_weight(1.0, frozen=True)], 0.9).tensors()) == {"ema.norm.weight"}


@pytest.mark.parametrize("half", [False, True])
def test_an_evaluation_sees_the_average_and_leaves_the_very_bits(half: bool) -> None:
    torch.manual_seed(0)
    live = nn.Parameter(torch.randn(64, 64).to(torch.bfloat16 if half else torch.float32))
    weight = Parameter("x.up_proj.weight", live.detach(), live)
    if half:
        weight = weight.with_master(torch.float32)
        weight.cut.copy_(torch.randn(64, 64))
        weight.refresh()
    ema = Ema([weight], 0.9)
    ema.start()
    weight.cut.copy_(torch.randn(64, 64))
    weight.refresh()
    ema.update()
    before = (weight.cut.clone(), live.detach().clone(), ema.tensors()["ema.x.up_proj.weight"].clone())
    with ema.swapped_in():
        assert torch.equal(weight.cut, before[2])
        assert torch.equal(live, before[2].to(live.dtype))
    after = (weight.cut, live, ema.tensors()["ema.x.up_proj.weight"])
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


def test_the_weights_come_back_when_an_evaluation_fails() -> None:
    weight = a_weight(2.0)
    ema = Ema([weight], 0.9)
    ema.start()
    weight.cut.fill_(3.0)
    with pytest.raises(ValueError, match="no data"), ema.swapped_in():
        raise ValueError("no data")
    assert torch.equal(weight.cut, torch.full((2,), 3.0, dtype=torch.float64))


@functools.cache
def trained(activations: str, axes: tuple[tuple[str, int], ...]) -> list[Seen]:
    rung = layouts.a_rung(**dict(axes))
    ranks: list[Seen] = run_world(train, rung.world, rung, Setting(activations=activations, steps=3))
    return ranks


@pytest.mark.parametrize("mode", ["Selective", "Full"])
@pytest.mark.parametrize("axes", [{"tensor": 2}, {"shard": 2}, {"pipeline": 2, "tensor": 2}], ids=str)
def test_layers_that_are_computed_twice_change_no_bit(mode: str, axes: dict[str, int]) -> None:
    kept, again = (trained(activations, tuple(axes.items())) for activations in ("None", mode))
    for a, b in zip(kept, again, strict=True):
        assert (a.losses, a.norms) == (b.losses, b.norms)
        assert furthest(a.weights, b.weights) == 0.0


def kept_tensors(rank: int, mode: str) -> int:
    """Elements that autograd keeps for the backward pass of one step."""
    seen: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        train(rank, layouts.a_rung(micro_batch=8), Setting(activations=mode, steps=1))
    return sum(seen.values())


def test_fewer_activations_are_kept_the_more_layers_are_computed_twice() -> None:
    none, selective, full = (kept_tensors(0, mode) for mode in ("None", "Selective", "Full"))
    assert none > 1.3 * selective > 1.3 * full


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "mistral"])
def test_eager_attention_is_the_same_attention(model_type: str) -> None:
    from tests.trainer import parity

    model = parity.tiny_model(model_type)
    fused, eager = (
        train(0, layouts.a_rung(), Setting(attention=attention, model=model, steps=3))
        for attention in ("Sdpa", "Eager")
    )
    assert eager.losses == pytest.approx(fused.losses, abs=1e-9)
    assert furthest(eager.weights, fused.weights) < 1e-8


def test_compiled_layers_train_alike() -> None:
    plain, compiled = (
        train(0, layouts.a_rung(), Setting("FP32", compile=on, steps=2)) for on in (False, True)
    )
    assert compiled.losses == pytest.approx(plain.losses, abs=1e-5)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"zloss": 1}, "spec.training.overrides.zloss: 1: unknown. Fix: known are: zLoss, emaDecay"),
        ({"zLoss": -1}, "spec.training.overrides.zLoss: -1: not a number from 0 to less than 1"),
        ({"emaDecay": 1}, "spec.training.overrides.emaDecay: 1: not a number from 0 to less than 1"),
        (
            {"attention": "Flash"},
            "attention: 'Flash': the package flash-attn is not installed. Fix: use Sdpa",
        ),
        ({"attention": "Fast"}, "attention: 'Fast': not an attention. Fix: use Auto, Sdpa or Eager"),
        ({"compile": 1}, "spec.training.overrides.compile: 1: not true or false"),
    ],
)
def test_overrides_are_a_closed_set_and_checked(overrides: dict[str, Any], message: str) -> None:
    assert message in refusal(training__overrides=overrides)


def test_compiling_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "needs a C++ compiler, and there is none" in refusal(training__overrides={"compile": True})


@pytest.mark.parametrize(
    ("training", "axes", "message"),
    [
        ({"overrides": {"compile": True}}, {"tensor": 2}, "tensor 2: layers that talk to other ranks"),
        ({"overrides": {"attention": "Eager"}}, {"context": 2}, "context 2 gathers keys and values for Sdpa"),
        ({"precision": "BF16"}, {"pipeline": 2, "schedule": "ZBV"}, "gradients of BF16 weights in BF16"),
    ],
)
def test_what_is_not_exact_under_an_axis_is_refused(
    training: dict[str, Any], axes: dict[str, Any], message: str
) -> None:
    spec = a_spec()
    spec["training"] |= training
    with pytest.raises(ConfigError, match=message):
        check_rung(read_config(spec), layouts.a_rung(global_batch=32, **axes))
