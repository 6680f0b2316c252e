"""Cut a rank's stages over the mesh, in the order in which it must happen.

1. tensor: before anything else, because sharding by data must see tensor-parallel parameters;
2. tie again: cutting the embedding and the head separately unties them, as each later replacement does;
3. shard: each layer, then the rest; gradients are summed, not averaged, since the loss is a sum;
4. storage, only for what this rank keeps;
5. without sharding, plain local tensors for the modules to compute on;
6. say of each parameter which ranks have only a part of its gradient (`Parameter.sums`).

The replicate and the context axis need no cut (`gradients.py` adds their ranks up), the pipeline axis is cut in
`stage.py`. A head that is tied to an embedding on another stage is a second copy of it, under the embedding's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from trainer.families import HEAD_WEIGHT
from trainer.mesh import Axes, end_group
from trainer.parameters import Parameter, as_they_are, made_local
from trainer.precision import PRECISIONS, Precision
from trainer.stage import Stage
from trainer.tensor_parallel import ColumnCut, RowCut, SharedInput, VocabularyCut


def parallelise(
    stages: Sequence[Stage], axes: Axes, precision: Precision = PRECISIONS["FP32"]
) -> list[Parameter]:
    """Turns the meta `stages` into this rank's part of them, with uninitialised storage; their parameters.

    In half precision (nothing else of `precision` matters here), what is sharded is kept in full precision and
    gathered in half; anything else gets a master.
    """
    parameters = [parameter for stage in stages for parameter in _parallelise(stage, axes, precision)]
    if stages[0].config.tie_word_embeddings and axes.stage_count > 1:
        parameters = _tied_over_stages(parameters, stages[0].family.embedding_weight, axes)
    if precision.mixed and axes.degree("shard") == 1:
        return [parameter.with_master(precision.master) for parameter in parameters]
    return parameters


def _parallelise(stage: Stage, axes: Axes, precision: Precision) -> list[Parameter]:
    tied = stage.config.tie_word_embeddings and stage.is_first and stage.is_last
    if axes.degree("tensor") > 1:
        parallelize_module(stage, axes.submesh("tensor"), tensor_plan(stage), src_data_rank=None)
        _divide(stage, axes.degree("tensor"))
    if tied:
        _tie(stage)
    if axes.degree("shard") > 1:
        _shard(stage, axes, precision)
    give_storage(stage)
    if tied:
        _tie(stage)
    if axes.degree("shard") > 1:
        return _with_sums(as_they_are(stage), stage, axes)
    parameters = made_local(stage)
    if tied:
        _tie(stage)
    return _with_sums(parameters, stage, axes)


def _tie(stage: Stage) -> None:
    stage.lm_head.weight = stage.embedding.weight


def tensor_plan(stage: Stage) -> dict[str, ParallelStyle]:
    """Norms stay whole on each rank. Logits stay cut by vocabulary: the loss works on the cut ones."""
    family, sequence = stage.family, stage.tokens is not None
    layer = f"{family.root}.{family.layers}.*"
    plan: dict[str, ParallelStyle] = {
        f"{layer}.{family.attention}": SharedInput(family.attention_input, sequence=sequence),
        f"{layer}.{family.feed_forward}": SharedInput(sequence=sequence),
    }
    plan |= {f"{layer}.{name}": ColumnCut() for name in family.column}
    plan |= {f"{layer}.{name}": RowCut(sequence=sequence) for name in family.row}
    if stage.is_first:
        plan[f"{family.root}.{family.embedding}"] = VocabularyCut(sequence=sequence)
    if stage.is_last:
        plan["lm_head"] = ColumnCut(SharedInput(sequence=sequence))
    return plan


def _divide(stage: Stage, degree: int) -> None:
    for layer in stage.layers:
        for path in stage.family.divided:
            owner, _, attribute = path.rpartition(".")
            module = layer.get_submodule(owner)
            setattr(module, attribute, getattr(module, attribute) // degree)


def _with_sums(parameters: list[Parameter], stage: Stage, axes: Axes) -> list[Parameter]:
    """Tensor ranks hold these whole, and have the gradient of their own heads only, or of their own tokens."""
    group = axes.group("tensor")
    if group is None:
        return parameters
    partial = tuple(f".{name}" for name in stage.family.partial)
    by_tokens = stage.tokens is not None
    return [
        replace(p, sums=(group,)) if p.name.endswith(partial) or (by_tokens and not _cut_by_tensor(p)) else p
        for p in parameters
    ]


def _cut_by_tensor(parameter: Parameter) -> bool:
    mesh = parameter.cut.device_mesh if isinstance(parameter.cut, DTensor) else None
    return mesh is not None and "tensor" in (mesh.mesh_dim_names or ())


def _tied_over_stages(parameters: list[Parameter], name: str, axes: Axes) -> list[Parameter]:
    """The embedding's two copies, on the first and the last stage, as one parameter."""
    group = end_group(axes) if axes.first_stage != axes.last_stage else None
    found: list[Parameter] = []
    head: Parameter | None = None
    for parameter in parameters:
        if parameter.name == HEAD_WEIGHT and axes.first_stage:
            head = parameter
            continue
        if parameter.name in (name, HEAD_WEIGHT) and group is not None:
            parameter = replace(parameter, name=name, sums=(*parameter.sums, group), stages=2)
        found.append(parameter)
    if head is None:
        return found
    return [replace(p, mirror=head.live) if p.name == name else p for p in found]


def _shard(stage: Stage, axes: Axes, precision: Precision) -> None:
    mesh = axes.submesh("shard")
    # A pipeline runs several forwards before the first backward: gathering again for each would cost more
    # than it saves.
    reshard = axes.degree("pipeline") == 1
    policy = MixedPrecisionPolicy()
    if precision.mixed:
        stage.to(precision.master)
        policy = MixedPrecisionPolicy(param_dtype=precision.compute, reduce_dtype=precision.master)
    for module in [*stage.layers, stage]:
        fully_shard(module, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    for module in stage.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)


def give_storage(stage: Stage) -> None:
    rotary = getattr(stage.body, "rotary_emb", None)
    if rotary is not None:
        stage.body.rotary_emb = nn.Identity()  # its tables are computed already, and would be wiped
    stage.to_empty(device="cpu")
    if rotary is not None:
        stage.body.rotary_emb = rotary
    scale = getattr(stage.embedding, "scalar_embed_scale", None) if stage.is_first else None
    if scale is not None:
        # Through float32, as transformers has it.
        stage.embedding.embed_scale.copy_(torch.tensor(scale))
