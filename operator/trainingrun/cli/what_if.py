"""The answer of `trainingrun what-if`: a configuration of the user beside the planner's own, as text or as data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainingrun.cli.bills import copies_of, memory_lines, percent, verdict
from trainingrun.cli.explain import mesh_of, time_lines, utilisation
from trainingrun.cli.output import table
from trainingrun.cli.plan_question import Question, machine_data
from trainingrun.planner.describe import describe_bill
from trainingrun.planner.text import counted, human_bytes, human_seconds
from trainingrun.planner.types import TrainingShape
from trainingrun.planner.weighing import Weighed, parts_of, weigh
from trainingrun.protocol.records import Rung


def comparison(question: Question, own: Rung | None, training: TrainingShape, rung: Rung) -> str:
    """`rung` under `training` is the user's."""
    asked, best = _both(question, own, training, rung)
    heading = f"{question.name} on {counted(rung.nodes, 'node')}: {mesh_of(rung)}"
    return "\n".join(
        [
            heading,
            answer(asked, best),
            "",
            *memory_lines(asked),
            f"  {asked.copies_reason}",
            "",
            *time_lines(question, asked, training),
            "",
            *_beside(question, asked, best),
        ]
    )


def answer(asked: Weighed, own: Weighed | None) -> str:
    """Whether it fits, and what it gains or costs, in one line."""
    if not asked.fits:
        return f"Does not fit: {verdict(asked)}."
    odds = f"Fits, and runs out of memory with a probability of {percent(asked.p_oom)}"
    if own is None:
        return f"{odds}; the planner has no plan of its own to compare it with."
    ratio = asked.step_seconds / own.step_seconds
    if asked.rung == own.rung:
        than = "it is the planner's own choice"
    elif abs(ratio - 1) < 0.005:
        than = "as fast as the planner's own choice"
    else:
        than = f"{100 * abs(ratio - 1):.0f} % {'slower' if ratio > 1 else 'faster'} than the planner's own choice"
    return f"{odds}; {than}."


def _both(
    question: Question, own: Rung | None, training: TrainingShape, rung: Rung
) -> tuple[Weighed, Weighed | None]:
    node, factors = question.inventory.node, question.factors
    asked = weigh(question.model, training, node, rung, factors)
    if own is None:
        return asked, None
    return asked, weigh(question.model, question.training, node, own, factors)


def _beside(question: Question, asked: Weighed, own: Weighed | None) -> list[str]:
    rows = [(name, left, right) for name, left, right in _rows(question, asked, own)]
    text = table(("", "YOURS", "PLANNER'S"), rows)
    return [f"  {line}".rstrip() for line in text.splitlines()]


def _rows(question: Question, asked: Weighed, own: Weighed | None) -> list[tuple[str, str, str]]:
    found = [(name, value(asked), value(own) if own else "-") for name, value in _LINES]
    if question.price_per_hour is not None:
        costs = [f"{_price(question, one):,.0f}" if one else "-" for one in (asked, own)]
        found.append(("cost of 1B tokens", costs[0], costs[1]))
    return found


def _price(question: Question, weighed: Weighed) -> float | None:
    return question.price(weighed.rung.nodes, weighed.tokens_per_second)


_LINES: tuple[tuple[str, Callable[[Weighed], str]], ...] = (
    ("mesh", lambda one: mesh_of(one.rung).split(" = ")[0]),
    ("micro-batch", lambda one: f"{one.rung.micro_batch} x {one.rung.accumulation}"),
    ("recompute", lambda one: one.rung.activation_checkpointing),
    ("ZeRO stage", lambda one: str(one.rung.zero_stage) if one.rung.zero_stage else "-"),
    ("schedule", lambda one: one.rung.schedule if one.rung.pipeline > 1 else "-"),
    ("padding", lambda one: counted(one.rung.padding_sequences, "sequence")),
    ("memory", lambda one: f"{human_bytes(one.memory.total)} of {human_bytes(one.available)}"),
    ("fits", lambda one: "yes" if one.fits else "no"),
    ("runs out of memory", lambda one: percent(one.p_oom)),
    ("step", lambda one: human_seconds(one.step_seconds)),
    ("tokens/s", lambda one: f"{one.tokens_per_second:.0f}"),
    ("copies of the state", lambda one: copies_of(one.rung)),
)


def what_if_document(
    question: Question, own: Rung | None, training: TrainingShape, rung: Rung
) -> dict[str, Any]:
    asked, best = _both(question, own, training, rung)
    return {
        "name": question.name,
        "nodes": rung.nodes,
        "machine": machine_data(question),
        "asked": _data(question, asked),
        "planner": best and _data(question, best),
    }


def _data(question: Question, weighed: Weighed) -> dict[str, Any]:
    rung = weighed.rung
    return {
        "axes": {
            "pipeline": rung.pipeline,
            "replicate": rung.replicate,
            "shard": rung.shard,
            "context": rung.context,
            "tensor": rung.tensor,
        },
        "microBatch": rung.micro_batch,
        "accumulation": rung.accumulation,
        "paddingSequences": rung.padding_sequences,
        "activationCheckpointing": rung.activation_checkpointing,
        "schedule": rung.schedule,
        "zeroStage": rung.zero_stage,
        "stateCopies": rung.state_copies,
        "buddies": rung.buddies,
        "memory": describe_bill(weighed.memory),
        "availableBytes": weighed.available,
        "marginBytes": weighed.margin,
        "fits": weighed.fits,
        "outOfMemoryProbability": weighed.p_oom,
        "stepSeconds": weighed.step_seconds,
        "tokensPerSecond": weighed.tokens_per_second,
        "modelFlopsPerStep": weighed.times.flops,
        "flopsUtilisation": utilisation(question, weighed),
        "pricePerBillionTokens": _price(question, weighed),
        "stepParts": {
            name: seconds * weighed.step_seconds / weighed.times.total
            for name, seconds in parts_of(weighed.times).items()
        },
    }
