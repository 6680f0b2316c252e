"""`trainingrun list | describe | wait | logs | events | scale`: a run on a cluster. The commands only.

The work is in `cluster_*`. A test gives its own `Surroundings` as the context's object.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console

from trainingrun.api.errors import CliExit
from trainingrun.cli import cluster_logs
from trainingrun.cli.cluster_access import NotAccepted, Place, Surroundings, a_place, find_run, runs_of
from trainingrun.cli.cluster_describe import render_story
from trainingrun.cli.cluster_events import event_json, events_of, events_table
from trainingrun.cli.cluster_list import names, runs_json, runs_table
from trainingrun.cli.cluster_rbac import needs_text
from trainingrun.cli.cluster_scale import scale
from trainingrun.cli.cluster_story import SCHEMA_VERSION, read_story
from trainingrun.cli.cluster_wait import End, checked_timeout, wait
from trainingrun.cli.output import Format, document, emit, say
from trainingrun.cluster.kubernetes.objects import core_path

INTERRUPTED = 130

cluster_app = typer.Typer(rich_markup_mode=None)


class ListFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


Name = Annotated[str, typer.Argument(help="The run.", show_default=False)]
Namespace = Annotated[
    str | None, typer.Option("-n", "--namespace", help="Its namespace. Omit = that of the context.")
]
Context = Annotated[
    str | None, typer.Option("--context", help="A context of the kubeconfig. Omit = its own.")
]
Output = Annotated[Format, typer.Option("-o", "--output", help="How to print it.")]


def _needs(verb: str) -> str:
    return f"Needs (RBAC): {needs_text(verb)}."


@contextmanager
def _at(ctx: typer.Context, context: str | None, namespace: str | None) -> Iterator[Place]:
    """The place that the options name. Ctrl-C ends the command with 130."""
    around = ctx.obj if isinstance(ctx.obj, Surroundings) else Surroundings()
    try:
        with a_place(around, context, namespace, str(ctx.info_name)) as place:
            yield place
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


@cluster_app.command("list", epilog=_needs("list"))
def list_command(
    ctx: typer.Context,
    namespace: Namespace = None,
    everywhere: Annotated[bool, typer.Option("-A", "--all-namespaces", help="Of all namespaces.")] = False,
    context: Context = None,
    output: Annotated[
        ListFormat, typer.Option("-o", "--output", help="How to print them.")
    ] = ListFormat.TABLE,
) -> None:
    """Show the runs of a namespace: what each does, how far it is, and its newest durable checkpoint."""
    if everywhere and namespace is not None:
        raise NotAccepted("--all-namespaces and --namespace: give one of them\n  hint: leave one out")
    with _at(ctx, context, namespace) as place:
        runs = runs_of(place, everywhere)
        if output is ListFormat.NAME:
            emit(names(runs)) if runs else None
        elif output is not ListFormat.TABLE:
            emit(document(runs_json(runs), Format(output.value)))
        elif runs:
            emit(runs_table(runs, place.now(), everywhere))
        else:
            say("there are no runs" if everywhere else f"there are no runs in {place.where}")


@cluster_app.command("describe", epilog=_needs("describe"))
def describe_command(
    ctx: typer.Context,
    name: Name,
    namespace: Namespace = None,
    context: Context = None,
    output: Output = Format.TABLE,
    epochs: Annotated[
        int, typer.Option("--epochs", min=0, help="How many of the newest epochs to show; 0 = all.")
    ] = 5,
) -> None:
    """Tell the story of a run: state, plan, progress, checkpoints, what went wrong and what that cost.

    JSON and YAML hold all epochs, pods and events.
    """
    with _at(ctx, context, namespace) as place:
        story = read_story(place, name)
        if output is Format.TABLE:
            emit(render_story(story, place.now(), epochs))
        else:
            emit(document(story.to_json(), output))


@cluster_app.command("wait", epilog=_needs("wait"))
def wait_command(
    ctx: typer.Context,
    name: Name,
    end: Annotated[End, typer.Option("--for", help="Which end to wait for.")] = End.COMPLETE,
    timeout: Annotated[
        str | None, typer.Option("--timeout", help="Longest wait: 90s, 10m, 1h30m. Omit = no limit.")
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    output: Output = Format.TABLE,
) -> None:
    """Wait until a run is over. The progress is shown on a terminal.

    Exit codes: 0 it ended as was waited for, 4 it ended the other way (so --for Complete gives 4 for a failed run),
    5 it was deleted, 6 the time is over. A run that needs a person is waited for, and said so.
    """
    limit = checked_timeout(timeout)
    with _at(ctx, context, namespace) as place:
        waited = wait(place, name, end, limit, Console(stderr=True, highlight=False))
        emit(waited.sentence() if output is Format.TABLE else document(waited.to_json(), output))
        if waited.code != CliExit.OK:
            raise typer.Exit(int(waited.code))


@cluster_app.command("logs", epilog=_needs("logs"))
def logs_command(
    ctx: typer.Context,
    name: Name,
    rank: Annotated[
        int | None, typer.Option("--rank", min=0, help="Only the lines of this rank, wherever it ran.")
    ] = None,
    slot: Annotated[int | None, typer.Option("--slot", min=0, help="Only the pods of this seat.")] = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on until the run is over; pods that come later too.")
    ] = False,
    previous: Annotated[
        bool, typer.Option("--previous", help="Of the container before: the one that ended last in each pod.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", min=0, help="Only so many of the newest lines of each pod.")
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    output: Output = Format.TABLE,
) -> None:
    """Print the logs of a run's pods in the order of time, each line with its pod.

    JSON is one object a line; YAML one document a line.
    """
    cluster_logs.check(rank, slot, follow, previous)
    wanted = cluster_logs.Wanted(rank, slot, previous, tail)
    with _at(ctx, context, namespace) as place:
        read = cluster_logs.follow_logs if follow else cluster_logs.read_logs
        for line in read(place, name, wanted):
            _emit_line(line, rank is None and slot is None, output)


@cluster_app.command("events", epilog=_needs("events"))
def events_command(
    ctx: typer.Context,
    name: Name,
    namespace: Namespace = None,
    context: Context = None,
    output: Output = Format.TABLE,
) -> None:
    """Show the events of a run and of its pods, the oldest first. The cluster keeps them for about an hour."""
    with _at(ctx, context, namespace) as place:
        run = find_run(place, name)
        events = events_of(run, place.api.list(core_path("events", place.namespace)))
        if output is not Format.TABLE:
            data = {"schemaVersion": SCHEMA_VERSION, "name": name, "namespace": place.namespace}
            emit(document({**data, "events": [event_json(event) for event in events]}, output))
        elif events:
            emit(events_table(events, place.now()))
        else:
            say(f"there are no events of run {name} in {place.where}; older ones are gone")


@cluster_app.command("scale", epilog=_needs("scale"))
def scale_command(
    ctx: typer.Context,
    name: Name,
    most: Annotated[
        int, typer.Option("--max", min=1, help="The new spec.scale.maxNodes.", show_default=False)
    ],
    namespace: Namespace = None,
    context: Context = None,
    output: Output = Format.TABLE,
) -> None:
    """Change how many nodes a run may use. It goes on from memory at the new size."""
    with _at(ctx, context, namespace) as place:
        scaled = scale(place, name, most)
        emit(scaled.sentence() if output is Format.TABLE else document(scaled.to_json(), output))
        if scaled.note:
            say(scaled.note)


def _emit_line(line: Any, with_pod: bool, output: Format) -> None:
    if output is Format.TABLE:
        emit(cluster_logs.shown_line(line, with_pod))
    elif output is Format.YAML:
        emit("---\n" + document(cluster_logs.line_json(line), output))
    else:
        emit(json.dumps(cluster_logs.line_json(line), ensure_ascii=False))
    sys.stdout.flush()
