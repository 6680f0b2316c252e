"""`trainingrun calibration export`: what a run measured, as a file that corrects later predictions.

Read from the run's own records and status, on a cluster or of a local run; nothing is changed.
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
from trainingrun.control.measured import measurements, sizes_in
from trainingrun.control.remembered import stepping_in
from trainingrun.planner.feedback import LEAST_STEPS, Measurement
from trainingrun.protocol import wire
from trainingrun.protocol.records import Epoch, Revision

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
    name: Annotated[str, typer.Argument(help="The run.", show_default=False)],
    local: Annotated[
        Path | None, typer.Option("--local", help="A local run: the folder of its state (.trainingrun).")
    ] = None,
    namespace: Annotated[str | None, typer.Option("-n", "--namespace", help="Of a run on a cluster.")] = None,
    context: Annotated[str | None, typer.Option("--context", help="A context of the kubeconfig.")] = None,
) -> None:
    """Print what a run measured on each of its sizes beside what was predicted, as JSON."""
    if local is not None:
        found = of_local_run(local, name)
    else:
        around = ctx.obj if isinstance(ctx.obj, Surroundings) else Surroundings()
        with a_place(around, context, namespace, "export") as place:
            run = find_run(place, name)
            uid = run["metadata"]["uid"]
            objects = place.api.list(records_path(place.namespace), selector(RUN_UID=uid))
            found = measured_by(name, *_read(objects, uid), status_of(run))
    emit(document(calibration_document(found), Format.JSON))
    say(f"{name}: {', '.join(_summary(one) for one in found)}")


def of_local_run(state: Path, name: str) -> tuple[Measurement, ...]:
    store = Store(state.resolve())
    run = store.run(name)
    if run is None:
        raise Missing(
            f"{name}: there is no such run in {state}\n  hint: `trainingrun local status` names them"
        )
    return measured_by(name, store.revisions(name, run.uid), store.epochs(name, run.uid), run.status)


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
