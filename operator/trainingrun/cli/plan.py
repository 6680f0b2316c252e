"""`trainingrun plan`, `explain` and `what-if`: what the planner would do with a manifest, offline.

None of them starts anything, nor looks at a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from trainingrun.cli.bills import copies_of
from trainingrun.cli.explain import explanation
from trainingrun.cli.output import Format, document, emit, say, table
from trainingrun.cli.plan_question import (
    AcceleratorName,
    Asked,
    Calibration,
    File,
    Hardware,
    Nodes,
    OneSize,
    Output,
    Price,
    Question,
    Scale,
    ask,
    machine_data,
    machines_text,
    one_size,
    size_of,
    sizes,
)
from trainingrun.cli.what_if import comparison, what_if_document
from trainingrun.planner.candidates import micro_batches, split
from trainingrun.planner.describe import describe
from trainingrun.planner.errors import PlanError, PlanInputError
from trainingrun.planner.layout import Cut
from trainingrun.planner.pinned import Given, completed, plain_rung
from trainingrun.planner.text import human_bytes, human_count, human_seconds
from trainingrun.planner.types import PlannedRung, TrainingShape
from trainingrun.planner.weighing import p_oom, weigh
from trainingrun.protocol.records import Rung


def plan_command(
    file: File,
    nodes: Nodes = None,
    hardware: Hardware = None,
    output: Output = Format.TABLE,
    accelerator: AcceleratorName = None,
    calibration: Calibration = None,
    price_per_hour: Price = None,
    scale: Scale = None,
) -> None:
    """Show how the run would be split over each number of nodes, with predicted memory and speed."""
    wanted = sizes(nodes)
    question = ask(Asked(file, hardware, accelerator, calibration, price_per_hour, scale), wanted)
    path = question.answer()
    if wanted is not None:
        least, most = wanted
        path = replace(path, rungs=tuple(one for one in path.rungs if least <= one.rung.nodes <= most))
    if output is not Format.TABLE:
        data = {"name": question.name, "machine": machine_data(question), **describe(path)}
        data["rungs"] = [_told(question, *pair) for pair in zip(path.rungs, data["rungs"], strict=True)]
        emit(document(data, output))
        return
    say(f"{question.name}: {human_count(path.parameters)} parameters, {machines_text(question.inventory)}")
    say(path.reason)
    emit(table(_headers(question), [_row(planned, question) for planned in path.rungs]))
    say("Predicted, not measured. `trainingrun explain` says why, and what other plans would cost.")


def explain_command(
    file: File,
    nodes: OneSize = None,
    hardware: Hardware = None,
    accelerator: AcceleratorName = None,
    calibration: Calibration = None,
    price_per_hour: Price = None,
    scale: Scale = None,
) -> None:
    """Say why a plan is what it is, where its memory and time go, and what its neighbours would cost."""
    size = one_size(nodes)
    question = ask(Asked(file, hardware, accelerator, calibration, price_per_hour, scale), _one(size))
    path = question.answer()
    planned = size_of(path, size)
    if holds_no_copy(planned.rung):
        least = planned.rung.world // planned.rung.processes_per_node
        raise PlanInputError("--nodes", size, planned.rung.reason, f"use --nodes {least} or more")
    emit(explanation(question, path, planned))


_Degree = typer.Option(min=1, show_default=False)


def what_if_command(
    file: File,
    nodes: OneSize = None,
    hardware: Hardware = None,
    tensor: Annotated[int | None, _Degree] = None,
    context: Annotated[int | None, _Degree] = None,
    shard: Annotated[int | None, _Degree] = None,
    replicate: Annotated[int | None, _Degree] = None,
    pipeline: Annotated[int | None, _Degree] = None,
    micro_batch: Annotated[int | None, _Degree] = None,
    recompute: Annotated[str | None, typer.Option(help="None, Selective or Full.")] = None,
    schedule: Annotated[str | None, typer.Option(help="1F1B, Interleaved1F1B or ZBV.")] = None,
    sequence_parallel: Annotated[
        bool | None, typer.Option("--sequence-parallel/--no-sequence-parallel")
    ] = None,
    zero_stage: Annotated[int | None, typer.Option(min=1, max=3, help="Of the engine DeepSpeed.")] = None,
    output: Output = Format.TABLE,
    accelerator: AcceleratorName = None,
    calibration: Calibration = None,
    price_per_hour: Price = None,
    scale: Scale = None,
) -> None:
    """Weigh a configuration of yours beside the planner's own: memory, time, whether it fits and how surely.

    What is not given is as the planner would have it. Nothing is refused for its cost, only for what cannot be.
    """
    size = one_size(nodes)
    question = ask(Asked(file, hardware, accelerator, calibration, price_per_hour, scale), _one(size))
    given = Given(
        tensor=tensor,
        context=context,
        shard=shard,
        replicate=replicate,
        pipeline=pipeline,
        micro_batch=micro_batch,
        recompute=recompute,
        schedule=schedule,
        sequence_parallel=sequence_parallel,
        zero_stage=zero_stage,
    )
    own = _own_choice(question, size, given)
    processes = question.inventory.node.processes
    usual = own or plain_rung(question.training, size or question.inventory.max_nodes, processes)
    training, rung = best_micro_batch(question, given, usual)
    if output is not Format.TABLE:
        emit(document(what_if_document(question, own, training, rung), output))
        return
    if given.nothing:
        say(
            "nothing is pinned: this is the planner's own choice (--tensor, --pipeline, --micro-batch, … pin)"
        )
    emit(comparison(question, own, training, rung))


def best_micro_batch(question: Question, given: Given, usual: Rung) -> tuple[TrainingShape, Rung]:
    """As given; a micro-batch that was not is the fastest that fits, or the planner's own where none does."""
    model, node = question.model, question.inventory.node
    training, rung = completed(model, question.training, given, usual, node.processes)
    if given.micro_batch is not None or given.nothing or rung.zero_stage:
        return training, rung
    cut = Cut(rung.pipeline, rung.shard, rung.tensor, rung.context, rung.schedule)
    best, least = (training, rung), math.inf
    for size in micro_batches(training, cut, rung.replicate):
        if split(training, cut, rung.replicate, micro_batch=size) is None:
            break  # larger ones fill a pipeline even less
        found = completed(model, question.training, replace(given, micro_batch=size), usual, node.processes)
        weighed = weigh(model, found[0], node, found[1], question.factors)
        if weighed.fits and weighed.step_seconds < least:
            best, least = found, weighed.step_seconds
    return best


def _own_choice(question: Question, nodes: int | None, given: Given) -> Rung | None:
    """None where the planner finds nothing that fits: what the user thinks of may be weighed all the same. A size that
    the run's path has no use for is planned alone.
    """
    try:
        rung = size_of(question.answer(), nodes).rung
        if rung.useful or nodes is None:
            return rung
        say(f"note: the run's path has no use for this size ({rung.reason}); it is planned alone")
        alone = replace(question.inventory, min_nodes=nodes, max_nodes=nodes)
        return size_of(replace(question, inventory=alone).answer(), nodes).rung
    except PlanError as error:
        if given.nothing:
            raise
        say(f"the planner finds no plan of its own: {error}")
        return None


def _one(nodes: int | None) -> tuple[int, int] | None:
    return None if nodes is None else (nodes, nodes)


HEADERS = (
    "NODES",
    "PIPELINE",
    "REPLICATE",
    "SHARD",
    "TENSOR",
    "MICRO-BATCH",
    "RECOMPUTE",
    "PADDING",
    "MEMORY",
    "STEP",
    "TOKENS/S",
    "COPIES",
)


def _headers(question: Question) -> tuple[str, ...]:
    price = ("COST/1B TOKENS",) if question.price_per_hour is not None else ()
    return (*HEADERS, *price, "USEFUL")


def holds_no_copy(rung: Rung) -> bool:
    """Of a size that is too small: what is predicted is of the smallest that is not."""
    return rung.world > rung.nodes * rung.processes_per_node


def _told(question: Question, planned: PlannedRung, data: Mapping[str, Any]) -> dict[str, Any]:
    """With the odds and the price. No figures of a size that cannot train."""
    rung = planned.rung
    data = {
        **data,
        "outOfMemoryProbability": p_oom(planned.memory, planned.available_bytes, rung.engine),
        "pricePerBillionTokens": question.price(rung.nodes, planned.tokens_per_second),
    }
    if not holds_no_copy(rung):
        return data
    return {
        key: value if key in ("nodes", "processesPerNode", "useful", "reason") else None
        for key, value in data.items()
    }


def _row(planned: PlannedRung, question: Question) -> tuple[str, ...]:
    rung, priced = planned.rung, question.price(planned.rung.nodes, planned.tokens_per_second)
    if holds_no_copy(rung):
        return (str(rung.nodes), *["-"] * (len(_headers(question)) - 2), f"no: {rung.reason}")
    price = () if priced is None else (f"{priced:,.0f}",)
    return (
        str(rung.nodes),
        str(rung.pipeline),
        str(rung.replicate),
        str(rung.shard),
        str(rung.tensor),
        f"{rung.micro_batch} x {rung.accumulation}",
        rung.activation_checkpointing,
        f"{100 * planned.padding:.1f} %",
        f"{human_bytes(planned.memory.total)} of {human_bytes(planned.available_bytes)}",
        human_seconds(planned.step_seconds),
        f"{planned.tokens_per_second:.0f}",
        copies_of(rung),
        *price,
        "yes" if rung.useful else f"no: {rung.reason}",
    )
