"""`trainingrun local`: a run on this machine, without a cluster. The commands only; the work is in `local_*`.

The control loop, the membership service and the agents are those of a cluster; pods are local processes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from trainingrun.api.errors import CliExit, Missing, UserError
from trainingrun.cli.local_faults import KINDS, InvalidFault, parse_fault
from trainingrun.cli.local_heldout import EvaluationFailed, Interrupted, evaluate, question_of
from trainingrun.cli.local_preflight import (
    Refused,
    Request,
    check_existing,
    check_places,
    forget,
    is_over,
    memory_note,
    read_request,
)
from trainingrun.cli.local_session import Session, continue_hint
from trainingrun.cli.output import Format, document, emit, say, table
from trainingrun.cli.report import heldout_line, reason_of, render
from trainingrun.cluster.local.cluster import DidNotStart, LocalCluster, StateInUse
from trainingrun.cluster.local.files import is_held
from trainingrun.cluster.local.store import Store

DEFAULT_STATE = Path(".trainingrun")
ENV_TRAINER_PYTHON = "TRAININGRUN_TRAINER_PYTHON"

local_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Run a TrainingRun on this machine, with local processes for pods.",
)
State = Annotated[Path, typer.Option("--state", help="Folder for the state of local runs.")]
Output = Annotated[Format, typer.Option("-o", "--output", help="How to print the result.")]
TrainerPython = Annotated[
    str, typer.Option("--trainer-python", envvar=ENV_TRAINER_PYTHON, help="Python that has the trainer.")
]
_INTERRUPTED = 128 + signal.SIGINT
_FAULTS = "; ".join(f"{kind}: {what}" for kind, what in KINDS.items())


@local_app.command("run")
def run_command(
    file: Annotated[Path, typer.Argument(help="The TrainingRun manifest.", show_default=False)],
    state: State = DEFAULT_STATE,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin anew: remove this run's state, checkpoints and model.")
    ] = False,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, help="Local nodes. Omit = spec.scale.maxNodes.")
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option("--fault", help=f"Something to break, e.g. node-kill@50%,back=15s. {_FAULTS}."),
    ] = None,
    trainer_python: TrainerPython = "",
    output: Output = Format.TABLE,
) -> None:
    """Train on this machine, and watch it.

    Relative file:// paths in the manifest start at the current directory. An unfinished run of the same
    name is continued. Ctrl-C stops the run; the same command continues it.
    """
    faults = [parse_fault(text) for text in fault or []]
    request = read_request(file, Path.cwd(), nodes)
    python = _checked_python(trainer_python)
    for one in faults:
        if one.slot is not None and one.slot >= request.nodes:
            raise InvalidFault(
                f"--fault {one.text}: slot={one.slot}, but there are {request.nodes} nodes\n"
                f"  hint: slots are 0 to {request.nodes - 1}"
            )
    console = Console(stderr=True, highlight=False)
    _check(Store(state.resolve()), request, fresh)  # what is refused leaves nothing, not even a state folder
    cluster = _take(state, python)
    try:
        _prepare(cluster, request, fresh)
        session = Session(cluster, request, python, console, faults)
        report, code = session.run()
    except DidNotStart as error:
        raise _Unexpected(str(error)) from None
    finally:
        cluster.teardown()
    if output is Format.TABLE:
        emit(render(report))
        sys.stdout.flush()  # measuring takes its time
    measured = report
    try:
        if report.outcome == "Complete":
            measured = session.measure(report)
    except EvaluationFailed as error:
        say(f"error: the exported model could not be measured: {error}")
        say(f"  hint: to measure it: trainingrun local evaluate {request.name} --state {state}")
        code = _INTERRUPTED if isinstance(error, Interrupted) else CliExit.UNEXPECTED
    if output is not Format.TABLE:
        emit(document(measured.to_json(), output))
    elif measured.heldout is not None:
        emit("\n" + heldout_line(measured.heldout))
    if report.outcome == "Stopped":
        say(continue_hint(file, state))
    if leaks := cluster.leaks():
        raise _Unexpected("something was left behind:\n  " + "\n  ".join(leaks))
    if code != CliExit.OK:
        raise typer.Exit(int(code))


@local_app.command("status")
def status_command(
    name: Annotated[str | None, typer.Argument(help="One run; all of its status with -o json.")] = None,
    state: State = DEFAULT_STATE,
    output: Output = Format.TABLE,
) -> None:
    """Show the runs of a state folder, whether they are running or not."""
    store = Store(state.resolve())
    found = [run for each in _names(store, name) if (run := store.run(each)) is not None]
    if output is not Format.TABLE:
        data = [{"name": run.name, "uid": run.uid, "status": dict(run.status)} for run in found]
        emit(document(data if name is None else data[0], output))
        return
    rows = []
    running = is_held(store.layout.lock)
    for run in found:
        progress, membership = run.status.get("progress") or {}, run.status.get("membership") or {}
        step = f"{progress['step']}/{progress['totalSteps']}" if progress else "-"
        word = is_over(run) or (reason_of(run.status, "Ready") or "Pending" if running else "Stopped")
        rows.append((run.name, word, step, str(progress.get("loss", "-")), str(membership.get("epoch", 0))))
    emit(table(("NAME", "STATE", "STEP", "LOSS", "EPOCH"), rows))


@local_app.command("evaluate")
def evaluate_command(
    name: Annotated[str, typer.Argument(help="A run that is complete.", show_default=False)],
    state: State = DEFAULT_STATE,
    tokens: Annotated[
        int | None,
        typer.Option(
            "--tokens",
            min=1,
            help="Measure about so many tokens of the held-out text. Omit = a sample whose size is bounded.",
        ),
    ] = None,
    trainer_python: TrainerPython = "",
    output: Output = Format.TABLE,
) -> None:
    """Measure a run's exported model on its held-out text, as at the end of the run.

    A text of more tokens is sampled: rows that are spread evenly over it, the same each time.
    """
    store = Store(state.resolve())
    run = store.run(_names(store, name)[0])
    if run is None:
        raise Missing(f"run {name}: it was just removed\n  hint: local status shows what is there")
    question = question_of(run, tokens)
    try:
        figures = evaluate(_checked_python(trainer_python), question, store.layout.cache, say)
    except Interrupted:
        raise typer.Exit(_INTERRUPTED) from None
    except EvaluationFailed as error:
        raise _Unexpected(f"the exported model {question.model} could not be measured: {error}") from None
    emit(heldout_line(figures) if output is Format.TABLE else document(figures, output))


@local_app.command("clean")
def clean_command(
    name: Annotated[str | None, typer.Argument(help="The run to remove.")] = None,
    state: State = DEFAULT_STATE,
    everything: Annotated[bool, typer.Option("--all", help="Remove all runs of the folder.")] = False,
) -> None:
    """Remove a run: its state, and the checkpoints and models that it wrote. Nothing else is touched."""
    store = Store(state.resolve())
    if (name is None) != everything:
        raise Refused(
            "local clean: which run? Checkpoints and models are removed with it\n"
            f"  hint: name one of {', '.join(store.run_names()) or 'none'}, or use --all"
        )
    names = _names(store, name)
    cluster = _take(state, "")  # refuses while they run; ends what a killed one left behind
    try:
        for each in names:
            run = store.run(each)
            for path in forget(store, run) if run is not None else ():
                say(f"removed {path}")
    finally:
        cluster.teardown()


class _Unexpected(UserError):
    exit_code = CliExit.UNEXPECTED


def _names(store: Store, name: str | None) -> Sequence[str]:
    names = store.run_names()
    if name is None:
        return names
    if name not in names:
        known = f"there are {', '.join(names)}" if names else "there is none"
        raise Missing(
            f"run {name}: not in {store.layout.root}; {known}\n  hint: --state names another folder"
        )
    return [name]


def _take(state: Path, trainer_python: str) -> LocalCluster:
    try:
        return LocalCluster(state, trainer_python)
    except StateInUse as error:
        raise Refused(f"--state {state}: {error}\n  hint: wait for it, or name another folder") from None


def _checked_python(path: str) -> str:
    if not path:
        raise Refused(
            "--trainer-python: not given, and TRAININGRUN_TRAINER_PYTHON is not set; the ranks need a Python "
            "that has torch\n  hint: make env prints it; then export TRAININGRUN_TRAINER_PYTHON=PATH"
        )
    if not os.access(path, os.X_OK):
        raise Refused(
            f"--trainer-python {path}: cannot be run\n  hint: name the Python of the trainer's environment"
        )
    return path


def _check(store: Store, request: Request, fresh: bool) -> bool:
    """Whether an unfinished run is continued. Raises UserError when this run cannot be begun as things are."""
    run = store.run(request.name)
    continued = check_existing(request, None if fresh else run)
    check_places(request, run.uid if run is not None else "")
    return continued


def _prepare(cluster: LocalCluster, request: Request, fresh: bool) -> None:
    """Continue what is there, or make room for a new run. Raises UserError."""
    store = cluster.port.store
    run = store.run(request.name)
    if run is not None and fresh:
        for path in forget(store, run):
            say(f"--fresh: removed {path}")
    continued = _check(store, request, fresh)
    if continued and run is not None:
        step = (run.status.get("progress") or {}).get("step", 0)
        say(f"continuing the unfinished run {request.name} (last heard of at step {step})")
    if note := memory_note(request.spec, request.nodes):
        say(note)
    say(f"state {cluster.root}  nodes {request.nodes}  {json.dumps(request.spec['resources']['perNode'])}")
