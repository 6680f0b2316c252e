"""Clipping, weight decay and parameter groups, against numbers known in closed form."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from tests.trainer import layouts, parity
from tests.trainer.worlds import run_world
from torch import nn
from torch.distributed.tensor import DTensor, Shard

from trainer.clip import clip_coefficient, holders, squared_norm_share
from trainer.config import OptimizerConfig
from trainer.mesh import build_axes
from trainer.optim import Optimizer
from trainer.parameters import Parameter

CONFIG = OptimizerConfig(
    learning_rate=0.1, betas=(0.9, 0.95), epsilon=1e-8, weight_decay=0.1, max_grad_norm=1.0
)


def a_parameter(name: str, value: float = 1.0) -> Parameter:
    live = nn.Parameter(torch.full((2, 2), value, dtype=torch.float64))
    return Parameter(name, live.detach(), live)


def test_gradients_are_clipped_by_their_common_norm() -> None:
    gradients = [torch.tensor([3.0]), torch.tensor([4.0])]
    norm = math.sqrt(squared_norm_share(gradients, [1, 1]))
    assert norm == 5.0
    scaled = [float(g) * clip_coefficient(norm, 1.0) for g in gradients]
    assert scaled == pytest.approx([0.6, 0.8], abs=1e-6)
    assert clip_coefficient(norm, 10.0) == clip_coefficient(norm, None) == 1.0


def norm_over_tensor_axis(rank: int) -> float:
    """Parts [3] and [4] of one parameter, and [12] that both ranks hold whole."""
    axes = build_axes(layouts.a_rung(tensor=2), rank)
    part = torch.tensor([[3.0], [4.0]])[rank]
    cut = DTensor.from_local(part, axes.submesh("tensor"), [Shard(0)], run_check=False)
    whole = torch.tensor([12.0])
    share = torch.tensor(squared_norm_share([part, whole], [holders(cut, axes), holders(whole, axes)]))
    dist.all_reduce(share)
    return math.sqrt(float(share))


def test_a_replicated_parameter_counts_once_in_the_norm() -> None:
    assert run_world(norm_over_tensor_axis, 2) == [13.0, 13.0]  # counting the copy twice gives 17.69


def test_a_weight_on_both_ends_of_a_pipeline_counts_once_and_all_stages_are_clipped_alike() -> None:
    """[3] is on the first stage, [4] on the last, and [12], a tied embedding, on both."""
    stages = [[3.0, 12.0], [4.0, 12.0]]
    shares = [squared_norm_share([torch.tensor([g]) for g in stage], [1, 2]) for stage in stages]
    norm = math.sqrt(sum(shares))
    assert norm == 13.0
    clipped = [g * clip_coefficient(norm, 1.0) for g in (3.0, 12.0)]
    assert clipped == pytest.approx([0.230769, 0.923077], abs=1e-6)


def test_weight_decay_is_decoupled_from_the_gradient() -> None:
    matrix = a_parameter("model.layers.0.mlp.up_proj.weight")
    optimizer = Optimizer([matrix], CONFIG)
    optimizer.update([torch.zeros(2, 2, dtype=torch.float64)], scale=1.0, learning_rate=0.1)
    assert torch.allclose(matrix.live, torch.full((2, 2), 0.99, dtype=torch.float64))


def test_norm_weights_and_biases_are_not_decayed() -> None:
    names = (
        "model.norm.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.self_attn.q_proj.bias",
    )
    for name in names:
        parameter = a_parameter(name)
        optimizer = Optimizer([parameter], CONFIG)
        optimizer.update([torch.zeros(2, 2, dtype=torch.float64)], scale=1.0, learning_rate=0.1)
        assert torch.equal(parameter.live, torch.ones(2, 2, dtype=torch.float64)), name


def test_every_parameter_of_a_llama_is_in_exactly_one_group() -> None:
    model = parity.tiny_model(num_hidden_layers=1, attention_bias=True)
    _, _, parameters = layouts.build(0, layouts.a_rung(), model, torch.float32)
    decayed, undecayed = (names for _, names in Optimizer(parameters, CONFIG).groups)
    layer = "model.layers.0"
    projections = [f"{layer}.self_attn.{part}_proj" for part in "qkvo"]
    mlp = [f"{layer}.mlp.{part}_proj" for part in ("gate", "up", "down")]
    matrices = ["model.embed_tokens", "lm_head", *projections, *mlp]
    norms = ["model.norm", f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"]
    assert decayed == {f"{name}.weight" for name in matrices}
    assert undecayed == {f"{name}.weight" for name in norms} | {f"{name}.bias" for name in projections}


def test_moments_exist_before_the_first_update_and_share_the_optimizers_memory() -> None:
    optimizer = Optimizer([a_parameter("lm_head.weight")], CONFIG)
    moments = optimizer.moments()
    assert moments.keys() == {"lm_head.weight.exp_avg", "lm_head.weight.exp_avg_sq"}
    optimizer.update([torch.ones(2, 2, dtype=torch.float64)], scale=1.0, learning_rate=0.1)
    assert torch.allclose(moments["lm_head.weight.exp_avg"], torch.full((2, 2), 0.1, dtype=torch.float64))
    assert optimizer.updates == 1
