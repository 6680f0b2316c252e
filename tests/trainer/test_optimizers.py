"""Each optimizer against its own definition, and every cut of the parameters against the uncut ones."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.trainer import layouts
from tests.trainer.worlds import run_world
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from trainer.config import OptimizerConfig
from trainer.mesh import build_axes
from trainer.optim import Optimizer, decays, is_hidden_matrix
from trainer.optim.muon import orthogonalised
from trainer.parameters import Parameter, local

NAMES = ("AdamW", "AdamW8bit", "Lion", "Muon", "Adafactor")
CONFIG = OptimizerConfig(
    learning_rate=0.1, betas=(0.9, 0.95), epsilon=1e-8, weight_decay=0.1, max_grad_norm=None
)
SHAPES = {
    "model.embed_tokens.weight": (10, 6),
    "model.layers.0.self_attn.q_proj.weight": (8, 6),
    "model.layers.0.self_attn.o_proj.weight": (6, 8),
    "model.layers.0.input_layernorm.weight": (6,),
    "lm_head.weight": (10, 6),
}
TENSOR_DIMS = {"q_proj": 0, "o_proj": 1, "embed_tokens": 0, "lm_head": 0}


def drawn(name: str, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + sum(map(ord, name)))
    return torch.randn(SHAPES[name], dtype=torch.float64, generator=generator)


def uncut() -> list[Parameter]:
    lives = {name: nn.Parameter(drawn(name, 0)) for name in SHAPES}
    return [Parameter(name, live.detach(), live) for name, live in lives.items()]


def after(name: str, steps: int = 4, **changes: Any) -> dict[str, torch.Tensor]:
    """The parameters after some updates, uncut."""
    parameters = uncut()
    optimizer = Optimizer(parameters, replace(CONFIG, name=name, **changes))
    for step in range(1, steps + 1):
        optimizer.update([drawn(p.name, step) for p in parameters], scale=0.5, learning_rate=0.1 / step)
    return {p.name: p.cut.clone() for p in parameters}


def test_lion_moves_by_the_sign_of_its_interpolated_momentum() -> None:
    live = nn.Parameter(torch.tensor([[1.0, 1.0]], dtype=torch.float64))
    optimizer = Optimizer([Parameter("a_proj.weight", live.detach(), live)], replace(CONFIG, name="Lion"))
    momentum = optimizer.moments()["a_proj.weight.momentum"]
    momentum.copy_(torch.tensor([[1.0, -1.0]]))
    optimizer.update([torch.tensor([[-8.0, -8.0]], dtype=torch.float64)], scale=1.0, learning_rate=0.1)
    # 0.9 - 0.8 = 0.1 goes down, -0.9 - 0.8 = -1.7 goes up; 0.01 decays.
    assert torch.allclose(live, torch.tensor([[0.89, 1.09]], dtype=torch.float64))
    assert torch.allclose(momentum, torch.tensor([[0.55, -1.35]], dtype=torch.float64))


def test_adamw_is_torchs() -> None:
    reference = {name: nn.Parameter(drawn(name, 0)) for name in SHAPES}
    matrices = [p for p in reference.values() if p.dim() > 1]
    vectors = [p for p in reference.values() if p.dim() == 1]
    theirs = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
        eps=1e-8,
    )
    run_reference(theirs, reference)
    assert_same(after("AdamW"), reference)


def test_adafactor_is_torchs() -> None:
    reference = {name: nn.Parameter(drawn(name, 0)) for name in SHAPES}
    groups = [{"params": [p], "weight_decay": 0.1 if p.dim() > 1 else 0.0} for p in reference.values()]
    run_reference(torch.optim.Adafactor(groups, lr=0.1, eps=(1e-8, 1e-3), d=1.0), reference)
    assert_same(after("Adafactor"), reference)


def run_reference(theirs: torch.optim.Optimizer, reference: dict[str, nn.Parameter]) -> None:
    for step in range(1, 5):
        for name, parameter in reference.items():
            parameter.grad = 0.5 * drawn(name, step)
        for group in theirs.param_groups:
            group["lr"] = 0.1 / step
        theirs.step()


def assert_same(ours: dict[str, torch.Tensor], reference: dict[str, nn.Parameter]) -> None:
    for name, parameter in reference.items():
        assert torch.allclose(ours[name], parameter, atol=1e-12, rtol=0), name


def test_muon_orthogonalises_and_keeps_the_directions() -> None:
    torch.manual_seed(0)
    left, _ = torch.linalg.qr(torch.randn(12, 5, dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64))
    matrix = left @ torch.diag(torch.tensor([3.0, 1.0, 0.5, 0.3, 0.2], dtype=torch.float64)) @ right.T
    for given in (matrix, matrix.T):
        result = orthogonalised(given)
        assert result.shape == given.shape
        values = torch.linalg.svdvals(result)
        assert float(values.min()) > 0.6
        assert float(values.max()) < 1.3
    turned = left.T @ orthogonalised(matrix) @ right
    assert torch.allclose(turned, torch.diag(torch.diagonal(turned)), atol=1e-12)


def test_muon_follows_torchs_for_hidden_matrices_and_adamw_for_the_rest() -> None:
    """torch computes the products in bfloat16, ours in the precision of the run."""
    ours = after("Muon")
    name = "model.layers.0.self_attn.q_proj.weight"
    reference = {name: nn.Parameter(drawn(name, 0))}
    theirs = torch.optim.Muon(
        reference.values(), lr=0.1, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    run_reference(theirs, reference)
    moved = (reference[name] - drawn(name, 0)).norm()
    assert float((ours[name] - reference[name]).norm() / moved) < 0.05
    adamw = after("AdamW")
    for other in ("model.embed_tokens.weight", "lm_head.weight", "model.layers.0.input_layernorm.weight"):
        assert torch.equal(ours[other], adamw[other])
    assert not torch.allclose(ours[name], adamw[name], atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_weight_decay_is_decoupled(name: str) -> None:
    """With no gradient at all, a matrix shrinks by lr x wd and a norm stays."""
    matrix = nn.Parameter(torch.ones(2, 2, dtype=torch.float64))
    norm = nn.Parameter(torch.ones(2, dtype=torch.float64))
    parameters = [
        Parameter("x.up_proj.weight", matrix.detach(), matrix),
        Parameter("norm.weight", norm.detach(), norm),
    ]
    optimizer = Optimizer(parameters, replace(CONFIG, name=name))
    optimizer.update([torch.zeros_like(p.cut) for p in parameters], scale=1.0, learning_rate=0.1)
    assert torch.allclose(matrix, torch.full((2, 2), 0.99, dtype=torch.float64))
    assert torch.equal(norm, torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("name", NAMES)
def test_state_exists_before_the_first_update_and_is_live(name: str) -> None:
    parameters = uncut()
    optimizer = Optimizer(parameters, replace(CONFIG, name=name))
    before = optimizer.moments()
    assert {key.rpartition(".")[0] for key in before} == set(SHAPES)
    assert not any(tensor.any() for tensor in before.values())
    optimizer.update([drawn(p.name, 1) for p in parameters], scale=1.0, learning_rate=0.1)
    assert optimizer.updates == 1
    assert all(tensor.any() for tensor in before.values())


@pytest.mark.parametrize("name", NAMES)
def test_restored_state_goes_on_bit_for_bit(name: str) -> None:
    whole, resumed = uncut(), uncut()
    first = Optimizer(whole, replace(CONFIG, name=name))
    for step in (1, 2):
        first.update([drawn(p.name, step) for p in whole], scale=1.0, learning_rate=0.1)
    second = Optimizer(resumed, replace(CONFIG, name=name))
    for ours, theirs in zip(resumed, whole, strict=True):
        local(ours.cut).copy_(theirs.cut)
    state = first.moments()
    for key, tensor in second.moments().items():
        tensor.copy_(state[key])
    second.updates = first.updates
    for optimizer, parameters in ((first, whole), (second, resumed)):
        optimizer.update([drawn(p.name, 3) for p in parameters], scale=1.0, learning_rate=0.1)
    assert all(torch.equal(a.cut, b.cut) for a, b in zip(whole, resumed, strict=True))


def cut_run(rank: int, name: str, axes_of: dict[str, int], steps: int) -> dict[str, torch.Tensor]:
    """The parameters after some updates, cut over shard and tensor as the trainer cuts them."""
    rung = layouts.a_rung(**axes_of)
    axes = build_axes(rung, rank)
    used = [axis for axis in ("shard", "tensor") if axes.degree(axis) > 1]
    mesh = axes.mesh[tuple(used)] if axes.mesh is not None else None
    parameters = []
    for one in SHAPES:
        kind = next((dim for part, dim in TENSOR_DIMS.items() if part in one), None)
        tensor = Replicate() if kind is None else Shard(kind)
        placements = [Shard(0) if axis == "shard" else tensor for axis in used]
        cut = distribute_tensor(drawn(one, 0), mesh, placements, src_data_rank=None)
        parameters.append(Parameter(one, cut, nn.Parameter(cut.to_local())))
    optimizer = Optimizer(parameters, replace(CONFIG, name=name))
    for step in range(1, steps + 1):
        gradients = []
        for parameter in parameters:
            whole = drawn(parameter.name, step)
            cut = parameter.cut
            part = distribute_tensor(whole, cut.device_mesh, cut.placements, src_data_rank=None)
            gradients.append(local(part).clone())
        optimizer.update(gradients, scale=0.5, learning_rate=0.1 / step)
    return {p.name: p.cut.full_tensor() for p in parameters if isinstance(p.cut, DTensor)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("axes", [{"tensor": 2}, {"shard": 3}, {"shard": 2, "tensor": 2}], ids=str)
def test_every_optimizer_is_exact_under_every_cut(name: str, axes: dict[str, int]) -> None:
    expected = after(name)
    ranks = run_world(cut_run, math.prod(axes.values()), name, axes, 4)
    for rank in ranks:
        for one, value in expected.items():
            assert torch.allclose(rank[one], value, atol=1e-12, rtol=0), one


def names_of(model_type: str, **config: Any) -> list[Parameter]:
    from transformers import AutoConfig, AutoModelForCausalLM

    small = {
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "vocab_size": 32,
        "tie_word_embeddings": False,
        "pad_token_id": None,
        **config,
    }
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **small))
    return [Parameter(name, p.detach(), p) for name, p in model.named_parameters()]


LAYER = "model.layers.0"
ATTENTION = {f"{LAYER}.self_attn.{part}_proj.weight" for part in "qkvo"}
MLP = {f"{LAYER}.mlp.{part}_proj.weight" for part in ("gate", "up", "down")}
VOCABULARY = {"model.embed_tokens.weight", "lm_head.weight"}
NORMS = {"model.norm.weight", f"{LAYER}.input_layernorm.weight", f"{LAYER}.post_attention_layernorm.weight"}
QKV_BIAS = {f"{LAYER}.self_attn.{part}_proj.bias" for part in "qkv"}
HEAD_NORMS = {f"{LAYER}.self_attn.{part}_norm.weight" for part in "qk"}
GPT2 = {"n_embd": 8, "n_head": 2, "n_layer": 1, "n_inner": 16}
GPT2_MATRICES = {
    f"transformer.h.0.{part}.weight" for part in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
}
GPT2_TABLES = {"transformer.wte.weight", "transformer.wpe.weight", "lm_head.weight"}
GPT2_REST = {
    f"transformer.h.0.{part}.bias"
    for part in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj", "ln_1", "ln_2")
} | {
    "transformer.h.0.ln_1.weight",
    "transformer.h.0.ln_2.weight",
    "transformer.ln_f.weight",
    "transformer.ln_f.bias",
}
EXPERTS = {f"{LAYER}.mlp.experts.gate_up_proj", f"{LAYER}.mlp.experts.down_proj", f"{LAYER}.mlp.gate.weight"}


@pytest.mark.parametrize(
    ("model_type", "config", "hidden", "tables", "undecayed"),
    [
        ("llama", {}, ATTENTION | MLP, VOCABULARY, NORMS),
        ("qwen2", {}, ATTENTION | MLP, VOCABULARY, NORMS | QKV_BIAS),
        ("qwen3", {}, ATTENTION | MLP, VOCABULARY, NORMS | HEAD_NORMS),
        ("mistral", {}, ATTENTION | MLP, VOCABULARY, NORMS),
        ("gemma", {"tie_word_embeddings": True}, ATTENTION | MLP, {"model.embed_tokens.weight"}, NORMS),
        ("gpt2", GPT2, GPT2_MATRICES, GPT2_TABLES, GPT2_REST),
        ("mixtral", {"num_local_experts": 2}, ATTENTION | EXPERTS, VOCABULARY, NORMS),
    ],
)
def test_parameter_groups_are_these_names(
    model_type: str, config: dict[str, Any], hidden: set[str], tables: set[str], undecayed: set[str]
) -> None:
    """Embeddings and head decay, as with transformers' Trainer; norms and biases never do."""
    parameters = names_of(model_type, **config)
    assert {p.name for p in parameters if is_hidden_matrix(p)} == hidden
    assert {p.name for p in parameters if decays(p)} == hidden | tables
    assert {p.name for p in parameters if not decays(p)} == undecayed
