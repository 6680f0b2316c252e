"""AdamW with moments in 8 bits: its step, the same bits under every cut, and what it refuses."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.trainer import layouts, numerics, parity
from tests.trainer.cuts import Cut, scalars
from tests.trainer.test_codes import LARGEST_ERROR
from tests.trainer.test_core_config import a_spec, rung_refusal
from tests.trainer.worlds import run_world
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from trainer.checkpoint import durable
from trainer.checkpoint.restore import from_durable, from_snapshots
from trainer.checkpoint.snapshot import SnapshotWriter, files_of
from trainer.config import OptimizerConfig, check_rung, read_config
from trainer.errors import ConfigError
from trainer.mesh import build_axes
from trainer.optim import Optimizer
from trainer.optim.codes import code_map
from trainer.parameters import Parameter, local

CONFIG = OptimizerConfig(0.01, (0.9, 0.95), 1e-8, 0.1, None, "AdamW8bit")


# One process -----------------------------------------------------------------------------


def made(shapes: dict[str, tuple[int, ...]], dtype: torch.dtype = torch.float32) -> list[Parameter]:
    lives = {name: nn.Parameter(drawn(name, shape, 0).to(dtype)) for name, shape in shapes.items()}
    return [Parameter(name, live.detach(), live) for name, live in lives.items()]


def drawn(name: str, shape: tuple[int, ...], step: int) -> torch.Tensor:
    """Gradients whose elements differ by orders of magnitude."""
    generator = torch.Generator().manual_seed(1000 * step + sum(map(ord, name)))
    return torch.randn(shape, generator=generator) ** 3


def test_a_step_is_adamws_from_the_moments_that_were_stored() -> None:
    shape, name = (16, 300), "model.layers.0.mlp.up_proj.weight"
    (parameter,) = parameters = made({name: shape})
    optimizer = Optimizer(parameters, CONFIG)
    coded = optimizer.moments()
    for step in (1, 2, 3):
        before = parameter.cut.double()
        first, second = widened(coded, name)
        gradient = drawn(name, shape, step)
        optimizer.update([gradient.clone()], scale=0.5, learning_rate=0.01)
        given = 0.5 * gradient.double()
        first, second = 0.9 * first + 0.1 * given, 0.95 * second + 0.05 * given**2
        corrected = first / (1 - 0.9**step), second / (1 - 0.95**step)
        expected = before * (1 - 0.01 * 0.1) - 0.01 * corrected[0] / (corrected[1].sqrt() + 1e-8)
        assert torch.allclose(parameter.cut.double(), expected, rtol=1e-6, atol=1e-8)
        for found, wanted, signed in zip(widened(coded, name), (first, second), (True, False), strict=True):
            for start in (0, 256):
                block = slice(start, start + 256)
                bound = LARGEST_ERROR[signed] * (1 + 1e-5) * wanted[:, block].abs().amax(dim=1, keepdim=True)
                assert bool(((found - wanted)[:, block].abs() <= bound).all())


def widened(states: dict[str, torch.Tensor], name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Both moments, in float64, one element after the other."""
    found = []
    for moment, signed in (("exp_avg", True), ("exp_avg_sq", False)):
        codes, scales = states[f"{name}.{moment}_codes"], states[f"{name}.{moment}_scales"]
        values = code_map(signed=signed).values.double().tolist()
        rows = [
            [values[code] * scale[column // 256] for column, code in enumerate(row)]
            for row, scale in zip(codes.tolist(), scales.double().tolist(), strict=True)
        ]
        found.append(torch.tensor(rows, dtype=torch.float64))
    return found[0], found[1]


KINDS = {
    "model.embed_tokens.weight": (64, 128),
    "model.layers.0.self_attn.q_proj.weight": (64, 128),
    "model.layers.0.self_attn.q_proj.bias": (8192,),
    "model.layers.0.self_attn.k_proj.weight": (31, 132),  # 4092 elements
    "model.layers.0.input_layernorm.weight": (8192,),
    "lm_head.weight": (64, 128),
}


def test_embeddings_norms_biases_and_small_tensors_keep_full_moments() -> None:
    states = Optimizer(made(KINDS), CONFIG).moments()
    coded = {name.rpartition(".")[0] for name in states if name.endswith("_codes")}
    assert coded == {"model.layers.0.self_attn.q_proj.weight", "lm_head.weight"}
    full = {f"{name}.{moment}" for name in KINDS.keys() - coded for moment in ("exp_avg", "exp_avg_sq")}
    assert full == {name for name in states if not name.endswith(("_codes", "_scales"))}
    assert {states[name].dtype for name in full} == {torch.float32}


def test_what_keeps_full_moments_is_updated_as_with_adamw() -> None:
    names = [
        name for name in KINDS if name not in ("model.layers.0.self_attn.q_proj.weight", "lm_head.weight")
    ]
    shapes = {name: KINDS[name] for name in names}
    found = []
    for config in (CONFIG, replace(CONFIG, name="AdamW")):
        parameters = made(shapes)
        optimizer = Optimizer(parameters, config)
        for step in (1, 2, 3):
            gradients = [drawn(name, shape, step) for name, shape in shapes.items()]
            optimizer.update(gradients, scale=1.0, learning_rate=0.01)
        found.append([parameter.cut for parameter in parameters])
    assert all(torch.allclose(ours, theirs, atol=1e-6) for ours, theirs in zip(*found, strict=True))


@pytest.mark.parametrize(("shape", "bytes_each"), [((1024, 1024), 2 + 8 / 256), ((64, 128), 2 + 8 / 128)])
def test_the_state_takes_two_bytes_and_the_scales(shape: tuple[int, int], bytes_each: float) -> None:
    states = Optimizer(made({"x.up_proj.weight": shape}), CONFIG).moments().values()
    assert sum(state.numel() * state.element_size() for state in states) == bytes_each * math.prod(shape)


def test_a_state_that_is_damaged_shows_in_the_weights() -> None:
    parameters = made({"x.up_proj.weight": (32, 256)})
    optimizer = Optimizer(parameters, CONFIG)
    for name, state in optimizer.moments().items():
        if name.endswith("_scales"):
            state[3] = float("nan")
    for _ in range(2):
        optimizer.update([torch.ones(32, 256)], scale=1.0, learning_rate=0.01)
    assert bool(parameters[0].cut[3].isnan().all())
    assert int(parameters[0].cut.isnan().sum()) == 256


MOST_APART = 0.004  # of the loss, at any step; measured: 0.0013 (0.0008 for the tiny model with short rows)
WIDE = {"num_hidden_layers": 2, "head_dim": 128, "intermediate_size": 512}  # whole blocks, under tensor 2 too


def test_the_loss_falls_as_with_adamw() -> None:
    full, coded = (
        train(optimizer=name, steps=40, model=parity.tiny_model(**WIDE))[0].losses
        for name in ("AdamW", "AdamW8bit")
    )
    assert full[0] == coded[0]
    assert full[-1] < 0.25 * full[0]
    apart = [abs(ours - theirs) / theirs for ours, theirs in zip(coded, full, strict=True)]
    assert 0.0 < max(apart) < MOST_APART


# Layouts ---------------------------------------------------------------------------------


def train(rung: Any = None, **setting: Any) -> list[numerics.Seen]:
    rung = rung or layouts.a_rung()
    torch.set_num_threads(1)
    given = numerics.Setting(**({"precision": "FP32", "optimizer": "AdamW8bit"} | setting))
    if rung.world == 1:
        return [numerics.train(0, rung, given)]
    return run_world(numerics.train, rung.world, rung, given)


SHAPES: dict[str, tuple[int, ...]] = {
    "model.embed_tokens.weight": (50, 96),
    "model.layers.0.self_attn.q_proj.weight": (52, 300),
    "model.layers.0.self_attn.o_proj.weight": (33, 1024),
    "model.layers.0.mlp.down_proj.weight": (8, 1024),
    "model.layers.0.input_layernorm.weight": (97,),
}
TENSOR_DIMS = {"q_proj": 0, "o_proj": 1, "down_proj": 1, "embed_tokens": 0}
STEPS = 4


def cut_parameters(rank: int, shapes: dict[str, tuple[int, ...]], axes_of: dict[str, int]) -> list[Parameter]:
    """As the trainer cuts them."""
    axes = build_axes(layouts.a_rung(**axes_of), rank)
    used = [axis for axis in ("shard", "tensor") if axes.degree(axis) > 1]
    if axes.mesh is None or not used:
        return made(shapes)
    mesh, parameters = axes.mesh[tuple(used)], []
    for name, shape in shapes.items():
        dim = next((dim for part, dim in TENSOR_DIMS.items() if part in name), None)
        tensor = Replicate() if dim is None else Shard(dim)
        placements = [Shard(0) if axis == "shard" else tensor for axis in used]
        cut = distribute_tensor(drawn(name, shape, 0), mesh, placements, src_data_rank=None)
        parameters.append(Parameter(name, cut, nn.Parameter(cut.to_local())))
    return parameters


def own_gradient(parameter: Parameter, step: int) -> torch.Tensor:
    whole, cut = drawn(parameter.name, tuple(parameter.cut.shape), step), parameter.cut
    if not isinstance(cut, DTensor):
        return whole
    return local(distribute_tensor(whole, cut.device_mesh, cut.placements, src_data_rank=None)).clone()


def tensors_of(optimizer: Optimizer) -> dict[str, torch.Tensor]:
    weights = {f"model.{parameter.name}": parameter.cut for parameter in optimizer.parameters}
    return weights | {f"optim.{name}": state for name, state in optimizer.moments().items()}


def updated(optimizer: Optimizer, steps: range) -> dict[str, torch.Tensor]:
    """Weights and state after these updates, whole."""
    for step in steps:
        gradients = [own_gradient(parameter, step) for parameter in optimizer.parameters]
        optimizer.update(gradients, scale=0.5, learning_rate=0.01 / step)
    return {name: layouts.whole(tensor) for name, tensor in tensors_of(optimizer).items()}


@functools.cache
def uncut() -> dict[str, torch.Tensor]:
    return updated(Optimizer(made(SHAPES), CONFIG), range(1, STEPS + 1))


def run_cuts(
    rank: int, cuts: list[dict[str, int]], location: Path, restored: dict[str, int] | None
) -> list[dict[str, torch.Tensor]]:
    """What is there in the end at each cut; with `restored`, what went on halfway from a checkpoint and from a snapshot
    at this other cut.
    """
    found = []
    for number, axes in enumerate(cuts, start=1):
        optimizer = Optimizer(cut_parameters(rank, SHAPES, axes), CONFIG)
        updated(optimizer, range(1, 3))
        where = location / str(number)
        options: dict[str, Any] = {"parent": "", "run_uid": "u", "keep_last": 2, "plan": {}, "versions": {}}
        name = durable.save(
            where, step=2, epoch=1, tensors=tensors_of(optimizer), scalars=scalars(2), **options
        )
        if restored is None:
            found.append(updated(optimizer, range(3, STEPS + 1)))
            continue
        memory = write_snapshot(rank, axes, optimizer, location / f"memory-{number}")
        for read in (
            lambda into, where=where, name=name: from_durable(where, name, into),
            lambda into, memory=memory: from_snapshots(files_of(memory, 1, 2), 1, 2, into),
        ):
            optimizer = Optimizer(cut_parameters(rank, SHAPES, restored), CONFIG)
            optimizer.updates = read(tensors_of(optimizer))["updates"]
            found.append(updated(optimizer, range(3, STEPS + 1)))
    return found


def write_snapshot(rank: int, axes_of: dict[str, int], optimizer: Optimizer, folder: Path) -> Path:
    cut = Cut(**axes_of)
    tensors, piece = tensors_of(optimizer), cut.piece(rank)
    writer = SnapshotWriter(folder, epoch=1, local_rank=rank, layout=cut.layout, piece=piece, tensors=tensors)
    writer.write(2, scalars(2))
    dist.barrier()
    return folder


def assert_same_bits(found: dict[str, torch.Tensor]) -> None:
    expected = uncut()
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


@pytest.mark.parametrize(
    ("cuts", "restored"),
    [
        ([{"shard": 2}, {"tensor": 2}, {"replicate": 2}], None),
        ([{"shard": 2}, {"replicate": 2}], {"tensor": 2}),
        ([{"shard": 3}], None),  # rows that do not divide
        ([{"shard": 2, "tensor": 2}, {"shard": 4}], {"tensor": 4}),
    ],
    ids=str,
)
def test_every_cut_and_every_change_of_it_gives_the_same_bits(
    tmp_path: Path, cuts: list[dict[str, int]], restored: dict[str, int] | None
) -> None:
    for rank in run_world(run_cuts, math.prod(cuts[0].values()), cuts, tmp_path, restored):
        for found in rank:
            assert_same_bits(found)


def test_one_process_goes_on_from_what_two_have_saved(tmp_path: Path) -> None:
    run_world(run_cuts, 2, [{"tensor": 2}], tmp_path, None)
    optimizer = Optimizer(made(SHAPES), CONFIG)
    optimizer.updates = from_durable(tmp_path / "1", "step-00000002.e0001", tensors_of(optimizer))["updates"]
    assert_same_bits(updated(optimizer, range(3, STEPS + 1)))


@pytest.mark.parametrize(
    ("axes", "family", "shape"),
    [
        ({"shard": 2, "tensor": 2}, "llama", WIDE),
        ({"tensor": 2}, "gpt2", {"hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 1}),
    ],
    ids=["llama", "gpt2"],
)
def test_the_trainers_own_layouts_agree(axes: dict[str, int], family: str, shape: dict[str, int]) -> None:
    """With its own gradients, which differ in the last digits; in FP64 those move no number over a border."""
    setting = {"precision": "FP64", "model": parity.tiny_model(family, **shape)}
    (expected,) = train(**setting)
    for seen in train(layouts.a_rung(**axes), **setting):
        assert max(abs(a - b) for a, b in zip(seen.losses, expected.losses, strict=True)) < 1e-9
        assert numerics.furthest(seen.weights, expected.weights) < 1e-9


# Refusals --------------------------------------------------------------------------------


def cut_a_block(rank: int) -> str:
    try:
        Optimizer(
            cut_parameters(rank, {"model.layers.0.mlp.down_proj.weight": (64, 768)}, {"tensor": 2}), CONFIG
        )
    except ConfigError as error:
        return str(error)
    return ""


def test_a_cut_through_a_block_is_refused_before_it_trains() -> None:
    for said in run_world(cut_a_block, 2):
        assert said.startswith("spec.training.optimizer.name: 'AdamW8bit': ")
        assert "down_proj.weight 768 / 2 = 384, / 256 = 1.50 blocks" in said


def a_wide_spec(**config: int) -> dict[str, Any]:
    given = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 8} | config
    spec = a_spec(training__optimizer__name="AdamW8bit")
    spec["model"]["config"] |= given
    return spec


def test_a_rung_that_leaves_blocks_whole_is_accepted() -> None:
    spec = a_wide_spec(intermediate_size=2048)
    check_rung(read_config(spec), layouts.a_rung(global_batch=32, tensor=2))


@pytest.mark.parametrize(
    ("config", "tensor", "equation", "nearest"),
    [
        ({"intermediate_size": 2048}, 4, "heads x head size 512 / 4 = 128, / 256 = 0.50 blocks", 2),
        ({"intermediate_size": 768}, 2, "intermediate_size 768 / 2 = 384, / 256 = 1.50 blocks", 1),
    ],
)
def test_a_rung_that_cuts_a_block_is_refused_with_the_nearest_that_does_not(
    config: dict[str, int], tensor: int, equation: str, nearest: int
) -> None:
    said = rung_refusal(a_wide_spec(**config), tensor=tensor)
    assert said.startswith(f"spec.parallelism.axes.tensor: {tensor}: ")
    assert equation in said
    assert f"the nearest that fits is tensor {nearest}" in said
