"""`trainingrun plan` and `trainingrun explain`: what the planner would do with a manifest, offline.

Neither starts anything, nor looks at a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from trainingrun.api.load import parse, read_manifest, resolve
from trainingrun.cli.explain import explanation
from trainingrun.cli.output import Format, document, emit, say, table
from trainingrun.planner.describe import describe
from trainingrun.planner.inputs import planner_inputs
from trainingrun.planner.search import plan
from trainingrun.planner.text import counted, human_bytes, human_count, human_seconds
from trainingrun.planner.types import Inventory, ModelShape, PlannedRung, PlanPath, TrainingShape

File = Annotated[Path, typer.Option("-f", "--file", help="The TrainingRun manifest.", show_default=False)]
Nodes = Annotated[
    int | None,
    typer.Option("--nodes", min=1, help="Only this number of nodes; it may lie outside minNodes..maxNodes."),
]
AcceleratorName = Annotated[
    str | None,
    typer.Option("--accelerator", help="Which accelerator the nodes have, when the manifest asks for one."),
]
Output = Annotated[Format, typer.Option("-o", "--output", help="How to print the plan.")]


@dataclass(frozen=True)
class Question:
    """What was asked, and the answer."""

    name: str
    model: ModelShape
    training: TrainingShape
    inventory: Inventory
    path: PlanPath


def plan_command(
    file: File, nodes: Nodes = None, output: Output = Format.TABLE, accelerator: AcceleratorName = None
) -> None:
    """Show how the run would be split over each number of nodes, with predicted memory and speed."""
    question = _ask(file, nodes, accelerator)
    path = question.path
    if nodes is not None:
        path = replace(path, rungs=(_rung(path, nodes),))
    if output is not Format.TABLE:
        emit(document({"name": question.name, **describe(path)}, output))
        return
    say(f"{question.name}: {human_count(path.parameters)} parameters, {_machines(question.inventory)}")
    say(path.reason)
    emit(table(HEADERS, [_row(planned) for planned in path.rungs]))
    say("Predicted, not measured. `trainingrun explain` says why, and what other plans would cost.")


def explain_command(file: File, nodes: Nodes = None, accelerator: AcceleratorName = None) -> None:
    """Say why a plan is what it is, where its memory and time go, and what its neighbours would cost."""
    question = _ask(file, nodes, accelerator)
    planned = _largest_useful(question.path) if nodes is None else _rung(question.path, nodes)
    emit(
        explanation(
            question.name, question.path, planned, question.model, question.training, question.inventory
        )
    )


def _ask(file: Path, nodes: int | None, accelerator: str | None) -> Question:
    spec, name = load_spec(file)
    model, training, inventory = planner_inputs(spec, accelerator_name=accelerator)
    if nodes is not None:
        one_size = training.engine == "DeepSpeed"
        inventory = replace(
            inventory,
            min_nodes=nodes if one_size else min(nodes, inventory.min_nodes),
            max_nodes=nodes if one_size else max(nodes, inventory.max_nodes),
        )
    return Question(name, model, training, inventory, plan(model, training, inventory))


def load_spec(file: Path) -> tuple[dict[str, Any], str]:
    """The resolved spec of a manifest, and the run's name. Relative paths start at the manifest's folder."""
    folder = file.absolute().parent
    run = parse(read_manifest(file), folder, str(file))
    return resolve(run, folder), run.metadata.name


def _rung(path: PlanPath, nodes: int) -> PlannedRung:
    return next(planned for planned in path.rungs if planned.rung.nodes == nodes)


def _largest_useful(path: PlanPath) -> PlannedRung:
    return next((planned for planned in reversed(path.rungs) if planned.rung.useful), path.rungs[-1])


def _machines(inventory: Inventory) -> str:
    node = inventory.node
    sizes = (
        counted(inventory.max_nodes, "node")
        if inventory.min_nodes == inventory.max_nodes
        else f"{inventory.min_nodes} to {inventory.max_nodes} nodes"
    )
    what = f"{node.cores:g} CPU" if node.device == "cpu" else node.name
    processes = "1 process" if node.processes == 1 else f"{node.processes} processes"
    return f"{sizes} of {processes} ({what})"


HEADERS = (
    "NODES",
    "PIPELINE",
    "REPLICATE",
    "SHARD",
    "TENSOR",
    "MICRO-BATCH",
    "PADDING",
    "MEMORY",
    "STEP",
    "TOKENS/S",
    "COPIES",
    "USEFUL",
)


def _row(planned: PlannedRung) -> tuple[str, ...]:
    rung = planned.rung
    return (
        str(rung.nodes),
        str(rung.pipeline),
        str(rung.replicate),
        str(rung.shard),
        str(rung.tensor),
        f"{rung.micro_batch} x {rung.accumulation}",
        f"{100 * planned.padding:.1f} %",
        f"{human_bytes(planned.memory.total)} of {human_bytes(planned.available_bytes)}",
        human_seconds(planned.step_seconds),
        f"{planned.tokens_per_second:.0f}",
        f"{rung.state_copies} (buddies)" if rung.buddies else str(rung.state_copies),
        "yes" if rung.useful else f"no: {rung.reason}",
    )
