"""Layouts that our trainer does not run (yet), or that other engines do: what the best of them would cost.

    ranked = what_if(Question(model, sequence_length=4096, global_batch=512, machine=machine, nodes=128))

For shapes with experts first of all, which the trainer refuses. Tried: tensor, pipeline with virtual stages, expert
ranks, what data ranks share, recomputation, micro-batch; context ranks as asked. Costs are the cost model's alone: no
snapshots, no copies of the state, no order of ranks of ours. Exact pruning, as `planner.fastest`. Pure; it must never
be taken for a plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import gcd

from trainingrun.planner.best_first import Outcome, best_first
from trainingrun.planner.cost.fit import fits
from trainingrun.planner.cost.frameworks import framework
from trainingrun.planner.cost.memory import fullest, peak_memory
from trainingrun.planner.cost.time import step_time
from trainingrun.planner.cost.types import (
    Bill,
    Framework,
    Layout,
    Machine,
    Numerics,
    Recompute,
    Sharding,
    Step,
    Workload,
)
from trainingrun.planner.rules import divisors
from trainingrun.planner.types import ModelShape

MOST_VIRTUAL = 8  # stages of a pipeline rank
NEARLY = 1.02

Slopes = dict[tuple[int, int, int, Recompute], float]


@dataclass(frozen=True)
class Question:
    model: ModelShape
    sequence_length: int  # tokens
    global_batch: int  # sequences
    machine: Machine
    nodes: int
    context: int = 1
    numerics: Numerics = field(default_factory=lambda: Numerics("bf16"))
    framework: Framework = field(default_factory=lambda: framework("megatron"))

    @property
    def world(self) -> int:
        return self.nodes * self.machine.accelerators

    def workload(self, layout: Layout) -> Workload:
        return Workload(
            self.model,
            self.sequence_length,
            self.global_batch,
            self.numerics,
            layout,
            self.machine,
            self.framework,
        )


@dataclass(frozen=True)
class Answer:
    layout: Layout
    bill: Bill  # of the fullest rank
    step: Step


def what_if(question: Question) -> Outcome[Answer]:
    """The fastest layouts that fit, cheapest first; none where nothing fits."""
    slopes: Slopes = {}
    return best_first(
        layouts(question),
        lambda layout: bound(question, layout, slopes),
        lambda layout: answers(question, layout),
        near=NEARLY,
    )


def layouts(question: Question) -> Iterator[Layout]:
    """Every layout that the shapes allow, without its micro-batch."""
    model, world, context = question.model, question.world, question.context
    machine = question.machine
    together = machine.domain or machine.accelerators
    common = gcd(model.attention_heads, model.key_value_heads, model.intermediate_size)
    for tensor in divisors(common):
        if tensor * context > together or together % (tensor * context):
            continue
        for pipeline in divisors(model.layers):
            data, rest = divmod(world, tensor * context * pipeline)
            if rest or not data or question.global_batch % data:
                continue
            for virtual in divisors(model.layers // pipeline):
                if virtual > (MOST_VIRTUAL if pipeline > 1 else 1):
                    break
                for expert in _expert_degrees(model, data * context * tensor):
                    for sharding, shard in _shardings(question, data * context, tensor, pipeline):
                        for recompute in Recompute:
                            yield Layout(
                                tensor=tensor,
                                pipeline=pipeline,
                                context=context,
                                data=data,
                                expert=expert,
                                virtual=virtual,
                                schedule="Interleaved1F1B" if virtual > 1 else "1F1B",
                                sharding=sharding,
                                shard=shard,
                                sequence_parallel=tensor > 1,
                                recompute=recompute,
                            )


def _expert_degrees(model: ModelShape, ranks: int) -> list[int]:
    """Expert ranks are otherwise data, context and tensor ranks, and each has as many experts."""
    if model.experts is None:
        return [1]
    return [degree for degree in divisors(model.experts.count) if ranks % degree == 0]


def _shardings(question: Question, ranks: int, tensor: int, pipeline: int) -> list[tuple[Sharding, int]]:
    """Among all ranks that hold the same weights, or among those of a node. Weights that are gathered for each
    micro-batch do not go with a pipeline's many.
    """
    found = [(Sharding.NONE, 1)]
    if ranks == 1:
        return found
    near = gcd(ranks, max(1, question.machine.accelerators // tensor))
    groups = sorted({near, ranks} - {1})
    found += [(Sharding.OPTIMIZER, group) for group in groups]
    if pipeline == 1:
        found += [(Sharding.WEIGHTS, group) for group in groups]
    return found


def bound(question: Question, layout: Layout, slopes: Slopes) -> float:
    """Seconds that no micro-batch beats: what a micro-batch takes grows along a line with its sequences."""
    key = (layout.tensor, layout.pipeline, layout.expert, layout.recompute)
    if key not in slopes:
        one, two = (_busy(step_time(question.workload(replace(layout, micro_batch=size)))) for size in (1, 2))
        slopes[key] = two - one
    return slopes[key] * (question.global_batch // layout.data)


def _busy(step: Step) -> float:
    return step.compute + step.tensor + step.context + step.expert


def answers(question: Question, layout: Layout) -> Iterator[tuple[float, Answer]]:
    """With each micro-batch that fits. Whole micro-batches only, enough to fill the pipeline, and in rounds where
    stages take turns.
    """
    share = question.global_batch // layout.data
    for size in divisors(share):
        accumulation = share // size
        if accumulation < layout.pipeline:
            break
        if layout.virtual > 1 and accumulation % layout.pipeline:
            continue
        work = question.workload(replace(layout, micro_batch=size, accumulation=accumulation))
        bill = fullest(peak_memory(work))
        if not fits(bill, question.machine):
            break  # larger ones keep more
        step = step_time(work)
        yield step.total, Answer(work.layout, bill, step)
