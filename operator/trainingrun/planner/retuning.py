"""What else a size of a frozen plan could do without being cut anew, now that it was measured.

Only what a later epoch takes up for free may change: the micro-batch, and what is computed twice where the run left
that open. Axes, shards and copies stay, those of buddies too, so every snapshot and checkpoint fits as it is, and
losing a node re-wires as before. Whether the change is worth it is for `keeping` to say. Pure; for the controller,
before an epoch begins.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from trainingrun.planner.candidates import micro_batches
from trainingrun.planner.keeping import DEFAULT_RULE, Choice, Prospect, Rule, Situation, choose
from trainingrun.planner.layout import Cut
from trainingrun.planner.pinned import MODES, Given, completed
from trainingrun.planner.types import ModelShape, NodeShape, TrainingShape
from trainingrun.planner.weighing import Factors, Weighed, allocated, weigh
from trainingrun.protocol.records import Rung

ENOUGH_LESS = 0.9  # of what ran out of memory


def retuned(
    model: ModelShape,
    training: TrainingShape,
    node: NodeShape,
    rung: Rung,
    factors: Factors,
    situation: Situation,
    rule: Rule = DEFAULT_RULE,
    *,
    tried: Collection[tuple[int, str]] = (),
) -> tuple[Choice, Rung]:
    """The rung to take for the next epoch of this size, and why. `training` as the run asked for it; `factors` are
    what its measurements teach. `tried`: (micro-batch, recomputation) that are not taken again.
    """
    present = weigh(model, training, node, rung, factors)
    found = variants(model, training, node, rung, factors)
    copies = present.rung.state_copies
    others = [
        one for one in found if one.fits and _way(one.rung) not in tried and one.rung.state_copies >= copies
    ]
    if (
        situation.ran_out
    ):  # what failed is known to be too much, whatever the model says; a little less may be too
        most = allocated(present.memory)
        less = [one for one in others if allocated(one.memory) < most]
        others = [one for one in less if allocated(one.memory) <= ENOUGH_LESS * most] or less
    if not others:
        return Choice(False, 0, "nothing else of this size fits"), rung
    best = min(others, key=lambda one: (one.step_seconds, one.memory.total, one.rung.micro_batch))
    decision = choose(_prospect(present), _prospect(best), situation, rule)
    return decision, best.rung if decision.change else rung


def variants(
    model: ModelShape, training: TrainingShape, node: NodeShape, rung: Rung, factors: Factors
) -> list[Weighed]:
    """All others of the same size and layout, fitting or not, in a fixed order."""
    cut = Cut(rung.pipeline, rung.shard, rung.tensor, rung.context, rung.schedule, rung.zero_stage)
    modes = MODES if training.activation_checkpointing == "Auto" else (rung.activation_checkpointing,)
    used = replace(rung, nodes=rung.world // node.processes)  # of a size that leaves nodes idle
    found = []
    for mode in modes:
        for size in micro_batches(training, cut, rung.replicate):
            if (mode, size) == (rung.activation_checkpointing, rung.micro_batch):
                continue
            if -(-training.global_batch_sequences // (rung.data * size)) < rung.pipeline:
                break  # larger ones fill a pipeline even less
            pins = Given(micro_batch=size, recompute=mode)
            trained, other = completed(model, training, pins, used, node.processes)
            other = replace(other, nodes=rung.nodes, useful=rung.useful, reason=rung.reason)
            found.append(weigh(model, trained, node, other, factors))
    return found


def _way(rung: Rung) -> tuple[int, str]:
    return rung.micro_batch, rung.activation_checkpointing


def _prospect(weighed: Weighed) -> Prospect:
    return Prospect(weighed.step_seconds, weighed.p_oom)
