"""Cut a stage over the mesh, in the order in which it must happen.

1. tensor: before anything else, because sharding by data must see tensor-parallel parameters;
2. tie again: cutting the embedding and the head separately unties them, as each later replacement does;
3. shard: each layer, then the rest; gradients are summed, not averaged, since the loss is a sum;
4. storage, only for what this rank keeps;
5. without sharding, plain local tensors for the modules to compute on.

The replicate axis needs no cut (`gradients.py` adds its ranks up), the pipeline axis is cut in `stage.py`.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from trainer.mesh import Axes
from trainer.parameters import Parameter, as_they_are, made_local
from trainer.stage import Stage
from trainer.tensor_parallel import ColumnCut, RowCut, SharedInput, VocabularyCut


def parallelise(stage: Stage, axes: Axes, *, tied: bool) -> list[Parameter]:
    """Turns the meta `stage` into this rank's part of it, with uninitialised storage; its parameters."""
    if axes.degree("tensor") > 1:
        parallelize_module(stage, axes.submesh("tensor"), tensor_plan(stage), src_data_rank=None)
    if tied:
        _tie(stage)
    if axes.degree("shard") > 1:
        _shard(stage, axes)
    _give_storage(stage)
    if tied:
        _tie(stage)
    if axes.degree("shard") > 1:
        return as_they_are(stage)
    parameters = made_local(stage)
    if tied:
        _tie(stage)
    return parameters


def _tie(stage: Stage) -> None:
    stage.lm_head.weight = stage.model.embed_tokens.weight


def tensor_plan(stage: Stage) -> dict[str, ParallelStyle]:
    """Norms stay whole on each rank. Logits stay cut by vocabulary: the loss works on the cut ones."""
    layer = "model.layers.*"
    plan: dict[str, ParallelStyle] = {
        f"{layer}.self_attn": SharedInput("hidden_states"),
        f"{layer}.self_attn.q_proj": ColumnCut(),
        f"{layer}.self_attn.k_proj": ColumnCut(),
        f"{layer}.self_attn.v_proj": ColumnCut(),
        f"{layer}.self_attn.o_proj": RowCut(),
        f"{layer}.mlp": SharedInput(),
        f"{layer}.mlp.gate_proj": ColumnCut(),
        f"{layer}.mlp.up_proj": ColumnCut(),
        f"{layer}.mlp.down_proj": RowCut(),
    }
    if stage.is_first:
        plan["model.embed_tokens"] = VocabularyCut()
    if stage.is_last:
        plan["lm_head"] = ColumnCut(shared_input=True)
    return plan


def _shard(stage: Stage, axes: Axes) -> None:
    mesh = axes.submesh("shard")
    # A pipeline runs several forwards before the first backward: gathering again for each would cost more
    # than it saves.
    reshard = axes.degree("pipeline") == 1
    for module in [*stage.layers, stage]:
        fully_shard(module, mesh=mesh, reshard_after_forward=reshard)
    for module in stage.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)


def _give_storage(stage: Stage) -> None:
    rotary = stage.model.rotary_emb
    stage.model.rotary_emb = nn.Identity()  # its tables are computed already, and would be wiped
    stage.to_empty(device="cpu")
    stage.model.rotary_emb = rotary
