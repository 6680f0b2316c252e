"""The text of `trainingrun explain`: reasons, the memory bill as bars, where the time goes, and the neighbours."""

from __future__ import annotations

from trainingrun.cli.bills import copies_of, memory_lines, percent, step_lines
from trainingrun.cli.output import table
from trainingrun.cli.plan_question import Question
from trainingrun.planner.nearby import nearby
from trainingrun.planner.text import counted, human_bytes, human_count, human_seconds
from trainingrun.planner.time import flops_equation
from trainingrun.planner.types import PlannedRung, PlanPath, TrainingShape
from trainingrun.planner.weighing import (
    Weighed,
    as_chosen,
    peak_flops,
    weigh,
)
from trainingrun.protocol.records import Rung


def explanation(question: Question, path: PlanPath, planned: PlannedRung) -> str:
    rung = planned.rung
    weighed = weigh(question.model, question.training, question.inventory.node, rung, question.factors)
    heading = f"{question.name} on {counted(rung.nodes, 'node')}: {mesh_of(rung)}"
    return "\n".join(
        [
            f"{heading}; {human_count(path.parameters)} parameters",
            "",
            "Why",
            *(f"  {reason}" for reason in (path.reason, *planned.reasons)),
            "",
            *memory_lines(weighed),
            "",
            *time_lines(question, weighed, as_chosen(question.training, rung)),
            "",
            "Neighbours",
            *_neighbours(question, weighed),
        ]
    )


def mesh_equation(tensor: int, shard: int, pipeline: int, replicate: int, context: int = 1) -> str:
    """The axes of the mesh, the fastest first, and their product. Context only where there is more than one."""
    world = tensor * context * shard * replicate * pipeline
    inner = f"tensor {tensor} x " + (f"context {context} x " if context > 1 else "")
    return f"{inner}shard {shard} x pipeline {pipeline} x replicate {replicate} = {world} processes"


def mesh_of(rung: Rung) -> str:
    return mesh_equation(rung.tensor, rung.shard, rung.pipeline, rung.replicate, rung.context)


def time_lines(question: Question, weighed: Weighed, training: TrainingShape) -> list[str]:
    lines = [
        f"Step: {human_seconds(weighed.step_seconds)}, {weighed.tokens_per_second:.0f} tokens/s"
        " (predicted, not measured)",
        *step_lines(weighed),
        f"  model FLOPs: {flops_equation(question.model, training)}",
        f"  utilisation ({_of_what(question)}): {utilisation_equation(question, weighed)}",
    ]
    price, nodes = question.price_per_hour, weighed.rung.nodes
    cost = question.price(nodes, weighed.tokens_per_second)
    if cost is not None:
        lines.append(
            f"  a billion tokens: {price:g} an hour x {counted(nodes, 'node')} x "
            f"{1e9 / weighed.tokens_per_second / 3600:.4g} h = {cost:,.0f}"
        )
    return lines


def _of_what(question: Question) -> str:
    return "of what the cores reach" if question.inventory.node.device == "cpu" else "MFU"


def utilisation(question: Question, weighed: Weighed) -> float:
    """Nothing that is computed twice counts; the rate is that of the data sheet, of cores what they reach."""
    return weighed.times.flops / weighed.step_seconds / weighed.rung.world / _peak(question)


def utilisation_equation(question: Question, weighed: Weighed) -> str:
    return (
        f"{weighed.times.flops:.4g} FLOPs / {weighed.step_seconds:.4g} s / {weighed.rung.world} processes / "
        f"{_peak(question):.4g} FLOP/s = {100 * utilisation(question, weighed):.1f} %"
    )


def _peak(question: Question) -> float:
    return peak_flops(question.inventory.node, question.training.activation_bytes)


def _neighbours(question: Question, own: Weighed) -> list[str]:
    rows = [("this plan", *_figures(own), "", "")]
    for near in nearby(
        question.model, question.training, question.inventory.node, own.rung, question.factors
    ):
        if near.weighed is None:
            rows.append((near.name, "-", "-", "-", "-", "-", f"not possible: {near.why_not}"))
            continue
        change = 100 * (near.weighed.step_seconds / own.step_seconds - 1)
        note = f"does not fit: {near.why_not}" if near.why_not else ""
        rows.append((near.name, *_figures(near.weighed), f"{change:+.0f} %", note))
    text = table(("PLAN", "MEMORY", "RUNS OUT", "STEP", "COPIES", "CHANGE", ""), rows)
    return [f"  {line}".rstrip() for line in text.splitlines()]


def _figures(weighed: Weighed) -> tuple[str, str, str, str]:
    return (
        human_bytes(weighed.memory.total),
        percent(weighed.p_oom),
        human_seconds(weighed.step_seconds),
        copies_of(weighed.rung),
    )
