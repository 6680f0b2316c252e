"""What `plan`, `explain` and `what-if` are asked, from their options to what the planner is asked. Offline.

Here alone is read what the machines are: of the manifest, of a name (`h100x8`, `p5.48xlarge`), or of a file that
declares them. Calibrations are read here too.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from trainingrun.api.errors import Missing
from trainingrun.api.load import parse, read_manifest, resolve
from trainingrun.cli.calibration_files import read_calibration
from trainingrun.cli.output import Format, say
from trainingrun.planner.cost.rates import CPU
from trainingrun.planner.cost.types import Machine
from trainingrun.planner.errors import PlanInputError
from trainingrun.planner.feedback import Names, factors_of
from trainingrun.planner.hardware.declared import declared_machine
from trainingrun.planner.hardware.naming import named_machine
from trainingrun.planner.inputs import model_shape, planner_inputs, training_shape
from trainingrun.planner.node_shapes import accelerators_asked, node_of
from trainingrun.planner.search import PLANNER_VERSION, plan
from trainingrun.planner.text import counted
from trainingrun.planner.types import Inventory, ModelShape, PlannedRung, PlanPath, TrainingShape
from trainingrun.planner.weighing import (
    NO_FACTORS,
    Factors,
    corrected,
    in_predicted_bytes,
    price_per_billion_tokens,
)

MOST_NODES = 4096  # of a manifest too

File = Annotated[Path, typer.Option("-f", "--file", help="The TrainingRun manifest.", show_default=False)]
Nodes = Annotated[
    str | None,
    typer.Option(
        "--nodes",
        help="Only this number of nodes, or a range (1..64) in place of minNodes..maxNodes.",
        metavar="N|A..B",
    ),
]
OneSize = Annotated[
    str | None,
    typer.Option("--nodes", help="The number of nodes; default: the largest of use.", metavar="N"),
]
Hardware = Annotated[
    str | None,
    typer.Option(
        "--hardware",
        help="The nodes' machine, in place of the manifest's: accelerators of a node (h100x8), an instance type "
        "(p5.48xlarge), or a file that declares it.",
    ),
]
Scale = Annotated[
    str | None,
    typer.Option(
        "--scale",
        help="The sizes that the run may have (1..64), in place of minNodes..maxNodes.",
        metavar="A..B",
    ),
]
AcceleratorName = Annotated[
    str | None,
    typer.Option("--accelerator", help="Which accelerator the nodes have, when the manifest asks for one."),
]
Calibration = Annotated[
    Path | None,
    typer.Option(
        "--calibration", help="Measurements that correct predictions (`trainingrun calibration export`)."
    ),
]
Price = Annotated[
    float | None,
    typer.Option("--price-per-hour", min=0, help="Of one node; adds the cost of a billion tokens."),
]
Output = Annotated[Format, typer.Option("-o", "--output", help="How to print it.")]

_RANGE = re.compile(r"^(?P<first>[0-9]+)(?:(?:\.\.|-)(?P<last>[0-9]+))?$")


@dataclass(frozen=True)
class Asked:
    """The options that the three commands share."""

    file: Path
    hardware: str | None = None
    accelerator: str | None = None
    calibration: Path | None = None
    price_per_hour: float | None = None
    scale: str | None = None


@dataclass(frozen=True)
class Question:
    """What was asked, before it is answered. `factors` is what measurements correct predictions by."""

    name: str
    model: ModelShape
    training: TrainingShape
    inventory: Inventory
    factors: Factors = NO_FACTORS
    price_per_hour: float | None = None

    def price(self, nodes: int, tokens_per_second: float) -> float | None:
        """Of a billion tokens; None where nodes have no price."""
        if self.price_per_hour is None:
            return None
        return price_per_billion_tokens(self.price_per_hour, nodes, tokens_per_second)

    def answer(self) -> PlanPath:
        """With corrected predictions. Raises PlanError."""
        node = self.inventory.node
        seen = replace(self.inventory, node=in_predicted_bytes(node, self.factors.memory))
        path = plan(self.model, self.training, seen)
        available = node.memory_bytes // node.processes
        rungs = tuple(replace(corrected(one, self.factors), available_bytes=available) for one in path.rungs)
        return replace(path, rungs=rungs)


def size_of(path: PlanPath, nodes: int | None) -> PlannedRung:
    """Of that size; without one, the largest that is of use."""
    if nodes is not None:
        return next(planned for planned in path.rungs if planned.rung.nodes == nodes)
    useful = (planned for planned in reversed(path.rungs) if planned.rung.useful)
    return next(useful, path.rungs[-1])


def sizes(text: str | None, option: str = "--nodes") -> tuple[int, int] | None:
    """(least, most) of `N` or `A..B`."""
    if text is None:
        return None
    found = _RANGE.match(text.strip())
    first, last = (int(found["first"]), int(found["last"] or found["first"])) if found else (0, 0)
    if not 1 <= first <= last <= MOST_NODES:
        raise PlanInputError(
            option,
            text,
            f"{text!r} is neither a number of nodes nor a range of them",
            f"use a number from 1 to {MOST_NODES}, or a range such as 1..64",
        )
    return first, last


def one_size(text: str | None) -> int | None:
    """Of `N`."""
    if text is None:
        return None
    number = int(text) if re.fullmatch(r"[0-9]{1,9}", text.strip()) else 0
    if not 1 <= number <= MOST_NODES:
        raise PlanInputError(
            "--nodes",
            text,
            f"{text!r} is not a number of nodes",
            f"use one number from 1 to {MOST_NODES}; `trainingrun plan` shows a range",
        )
    return number


def ask(asked: Asked, nodes: tuple[int, int] | None = None) -> Question:
    """One size of the manifest's scale is planned with the whole path, one outside of it alone; a range replaces it."""
    if asked.price_per_hour is not None and not math.isfinite(asked.price_per_hour):
        raise PlanInputError(
            "--price-per-hour", asked.price_per_hour, "it is not a finite number", "use the price of one node"
        )
    spec, name = load_spec(asked.file)
    model, training, inventory, price = _machines(spec, asked)
    scale = sizes(asked.scale, "--scale")
    if scale is not None:
        inventory = replace(inventory, min_nodes=scale[0], max_nodes=scale[1])
    if nodes is not None:
        inventory = _resized(inventory, nodes, one_size=training.engine == "DeepSpeed")
    factors = NO_FACTORS
    if asked.calibration is not None:
        measured = read_calibration(asked.calibration)
        names = Names.of(model, training, inventory.node)
        factors = factors_of(measured, names, planner_version=PLANNER_VERSION)
        say(_of_calibration(asked.calibration, len(measured), factors))
    return Question(name, model, training, inventory, factors, price)


def load_spec(file: Path) -> tuple[dict[str, Any], str]:
    """The resolved spec of a manifest, and the run's name. Relative paths start at the manifest's folder."""
    folder = file.absolute().parent
    run = parse(read_manifest(file), folder, str(file))
    return resolve(run, folder), run.metadata.name


def _machines(
    spec: dict[str, Any], asked: Asked
) -> tuple[ModelShape, TrainingShape, Inventory, float | None]:
    if asked.hardware is None:
        return (*planner_inputs(spec, accelerator_name=asked.accelerator), asked.price_per_hour)
    if asked.accelerator is not None:
        raise PlanInputError(
            "--accelerator",
            asked.accelerator,
            "--hardware names the accelerator already",
            "use one of the two",
        )
    machine = _machine(asked.hardware, accelerators_asked(spec))
    there = accelerators_asked(spec)
    if there != machine.accelerators and not (there is None and machine.name == CPU):
        manifest = "cores only" if there is None else f"{there} accelerators a node"
        say(f"note: the manifest asks for {manifest}; this is about {machine.accelerators} x {machine.name}")
    scale = spec["scale"]
    inventory = Inventory(node_of(machine, spec), scale["minNodes"], scale["maxNodes"])
    price = machine.price_per_hour if asked.price_per_hour is None else asked.price_per_hour
    return model_shape(spec), training_shape(spec), inventory, price


def _machine(text: str, usual: int | None) -> Machine:
    """A file is one that ends as such files do, or has a folder."""
    if text.endswith((".yaml", ".yml", ".json")) or "/" in text:
        path = Path(text)
        if not path.is_file():
            raise Missing(f"--hardware: there is no such file: {path}")
        return declared_machine(read_manifest(path), path=str(path), name=path.stem)
    return named_machine(text, per_node=usual)


def _resized(inventory: Inventory, nodes: tuple[int, int], *, one_size: bool) -> Inventory:
    first, last = nodes
    least, most = inventory.min_nodes, inventory.max_nodes
    if first == last and least <= first <= most and not one_size:
        return inventory
    if first == last and (first < least or first > most):
        say(f"note: --nodes {first} is outside of the scale ({least} to {most}); that size is planned alone")
    return replace(inventory, min_nodes=first, max_nodes=last)


def machines_text(inventory: Inventory) -> str:
    node = inventory.node
    number = (
        counted(inventory.max_nodes, "node")
        if inventory.min_nodes == inventory.max_nodes
        else f"{inventory.min_nodes} to {inventory.max_nodes} nodes"
    )
    cores = f"{node.cores:g} CPU" if node.cores else "cores as declared"
    what = cores if node.device == "cpu" else node.name
    processes = "1 process" if node.processes == 1 else f"{node.processes} processes"
    return f"{number} of {processes} ({what})"


def _of_calibration(file: Path, count: int, factors: Factors) -> str:
    if factors == NO_FACTORS:
        return (
            f"{file}: {counted(count, 'measurement')}, none by this planner of this engine on this hardware; "
            "nothing is corrected"
        )
    return (
        f"{file}: {counted(count, 'measurement')}; memory x {factors.memory:.3f}, "
        f"step time x {factors.time:.3f} of what is predicted"
    )


def machine_data(question: Question) -> dict[str, Any]:
    """What the plan is about, and by what its predictions are corrected; for programs."""
    node = question.inventory.node
    return {
        "name": node.name or node.device,
        "processesPerNode": node.processes,
        "bytesPerProcess": node.memory_bytes // node.processes,
        "pricePerHour": question.price_per_hour,
        "measuredFactors": {"memory": question.factors.memory, "time": question.factors.time},
    }
