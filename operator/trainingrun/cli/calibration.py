"""`trainingrun calibration`: what a run measured, as files for later plans.

`export` writes step times and memory beside what was predicted, which correct predictions; `machine` writes how fast
its machine is, for hardware that no table knows. Read from the run's own records and status, on a cluster or of a local
run; nothing is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from trainingrun.api.errors import CliExit, Missing, UserError
from trainingrun.cli.calibration_files import calibration_document
from trainingrun.cli.cluster_access import Surroundings, a_place, find_run
from trainingrun.cli.cluster_state import status_of
from trainingrun.cli.output import Format, document, emit, say
from trainingrun.cluster.kubernetes import records
from trainingrun.cluster.kubernetes.objects import records_path, selector
from trainingrun.cluster.local.store import Store
from trainingrun.control.measured import measurements, sizes_in, speed_in
from trainingrun.control.remembered import stepping_in
from trainingrun.planner.feedback import LEAST_STEPS, Measurement
from trainingrun.planner.inputs import planner_inputs
from trainingrun.planner.node_shapes import declaration
from trainingrun.protocol import wire
from trainingrun.protocol.records import Epoch, Revision

Name = Annotated[str, typer.Argument(help="The run.", show_default=False)]
Local = Annotated[
    Path | None, typer.Option("--local", help="A local run: the folder of its state (.trainingrun).")
]
Namespace = Annotated[str | None, typer.Option("-n", "--namespace", help="Of a run on a cluster.")]
Context = Annotated[str | None, typer.Option("--context", help="A context of the kubeconfig.")]

calibration_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measurements of runs, which correct predictions (`trainingrun plan --calibration`).",
)


@calibration_app.callback()
def _group() -> None:
    """Measurements of runs, which correct predictions (`trainingrun plan --calibration`)."""


class NothingMeasured(UserError):
    """The run has not trained enough to say anything."""

    exit_code = CliExit.MISSING


@calibration_app.command("export")
def export_command(
    ctx: typer.Context,
    name: Name,
    local: Local = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Print what a run measured on each of its sizes beside what was predicted, as JSON."""
    found = measured_by(name, *_records_of(ctx, name, local, namespace, context))
    emit(document(calibration_document(found), Format.JSON))
    say(f"{name}: {', '.join(_summary(one) for one in found)}")


@calibration_app.command("machine")
def machine_command(
    ctx: typer.Context,
    name: Name,
    local: Local = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Print the machine that a run measured when it began, as a file for `--hardware`."""
    revisions, epochs, status = _records_of(ctx, name, local, namespace, context)
    speed = speed_in(epochs, stepping_in(status))
    if speed is None or not revisions:
        raise NothingMeasured(
            f"{name}: no epoch of it began from nothing and told how fast its machine is\n  hint: try again when "
            "it has trained a step"
        )
    spec = revisions[-1].spec
    node = planner_inputs(spec)[2].node
    emit(document(declaration(node, speed, spec["training"]["precision"]), Format.JSON))
    unknown = [
        words
        for words, rate in (
            ("inside a node", speed.local_link_bytes_per_second),
            ("between nodes", speed.link_bytes_per_second),
        )
        if not rate
    ]
    if unknown:
        say(f"{name}: links {' and '.join(unknown)} were not measured; what is there is the planner's guess")


def _records_of(
    ctx: typer.Context, name: str, local: Path | None, namespace: str | None, context: str | None
) -> tuple[Sequence[Revision], Sequence[Epoch], Any]:
    """And the status."""
    if local is not None:
        return _of_local_run(local, name)
    around = ctx.obj if isinstance(ctx.obj, Surroundings) else Surroundings()
    with a_place(around, context, namespace, "export") as place:
        run = find_run(place, name)
        uid = run["metadata"]["uid"]
        objects = place.api.list(records_path(place.namespace), selector(RUN_UID=uid))
        return (*_read(objects, uid), status_of(run))


def _of_local_run(state: Path, name: str) -> tuple[Sequence[Revision], Sequence[Epoch], Any]:
    store = Store(state.resolve())
    run = store.run(name)
    if run is None:
        raise Missing(
            f"{name}: there is no such run in {state}\n  hint: `trainingrun local status` names them"
        )
    return store.revisions(name, run.uid), store.epochs(name, run.uid), run.status


def of_local_run(state: Path, name: str) -> tuple[Measurement, ...]:
    return measured_by(name, *_of_local_run(state, name))


def measured_by(
    name: str, revisions: Sequence[Revision], epochs: Sequence[Epoch], status: Any
) -> tuple[Measurement, ...]:
    """Raises NothingMeasured."""
    sizes = sizes_in(epochs, stepping_in(status))
    newest: dict[int, Measurement] = {}
    for revision in reversed(revisions):  # a size is told by the revision that it trained by
        for one in measurements(revision, sizes):
            newest.setdefault(one.nodes, one)
    found = tuple(newest[nodes] for nodes in sorted(newest))
    if not found:
        raise NothingMeasured(
            f"{name}: no size of it trained {LEAST_STEPS} steps in one epoch\n  hint: try again when it has"
        )
    return found


def _read(objects: Sequence[Any], uid: str) -> tuple[list[Revision], list[Epoch]]:
    """Records that cannot be read are left out: what they measured is not known."""
    revisions: list[Revision] = []
    epochs: list[Epoch] = []
    for item in objects:
        try:
            if records.is_epoch(item):
                epoch = records.from_object(Epoch, item, uid)
                epochs += [] if epoch is None else [epoch]
            else:
                revision = records.from_object(Revision, item, uid)
                revisions += [] if revision is None else [revision]
        except wire.WireError as error:
            say(f"note: {error}")
    return records.sort(revisions), records.sort(epochs)


def _summary(one: Measurement) -> str:
    ratio, memory = one.time_ratio(), one.memory_ratio()
    parts = [f"step time x {ratio:.3f}" if ratio else "step time not of use"]
    parts += [f"memory x {memory:.3f}"] if memory else []
    return f"{one.nodes} nodes: {', '.join(parts)} of what was predicted"
