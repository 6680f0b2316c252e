"""`trainingrun checkpoint`: list, verify, export and remove durable checkpoints, without a cluster, a GPU or torch.

Only `export` needs the trainer's environment, and starts it. A location that another run writes to at this moment may
be looked at; removing is refused for what a run would go on from.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from trainingrun.api.errors import CliExit, Missing, UserError
from trainingrun.api.uris import FILE, PVC, S3, file_path
from trainingrun.cli.checkpoint_files import (
    Contents,
    Found,
    State,
    Unreadable,
    exported_by,
    look,
    problems,
    remove,
)
from trainingrun.cli.cluster_times import age
from trainingrun.cli.output import Format, document, emit, say, table
from trainingrun.cli.plan_question import load_spec
from trainingrun.cluster.local.container import checkout_roots, python_path
from trainingrun.planner.text import counted, human_bytes, human_count

ENV_TRAINER_PYTHON = "TRAININGRUN_TRAINER_PYTHON"
_HEADERS = ("NAME", "STEP", "EPOCH", "TOKENS", "SIZE", "AGE", "STATE", "KEPT")

checkpoint_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look at durable checkpoints, and take models out of them.",
)
Place = Annotated[
    str,
    typer.Argument(
        help="The checkpoint location: a folder, a file:// URI, or the manifest (.yaml) of the run.",
        show_default=False,
    ),
]
Output = Annotated[Format, typer.Option("-o", "--output", help="How to print the result.")]


class Damaged(UserError):
    """A checkpoint is not what was written."""

    exit_code = CliExit.RUN_FAILED


@checkpoint_app.command("ls")
def ls_command(place: Place, output: Output = Format.TABLE) -> None:
    """List what is there, the newest last. Manifests are checked; `verify` reads the data too."""
    contents = look(_folder(place))
    if output is not Format.TABLE:
        emit(document(_listing(contents), output))
        return
    now = time.time()
    emit(table(_HEADERS, [_row(one, now) for one in contents.found]))
    newest = contents.newest
    owner = f"of run {contents.owner}" if contents.owner else "of no run"
    say(f"{owner}; the newest whole checkpoint: {newest.name if newest else 'none'}")


@checkpoint_app.command("verify")
def verify_command(
    place: Place,
    names: Annotated[
        list[str] | None, typer.Argument(help="Names or steps. Omit = all.", show_default=False)
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Read every byte and compare it with its checksum. Ends with code 4 when something is damaged."""
    contents = look(_folder(place))
    chosen = [_named(contents, name) for name in names] if names else list(contents.found)
    results = []
    for one in chosen:
        wrong = [one.problem] if one.manifest is None else list(problems(contents.location, one.manifest))
        results.append((one, wrong))
        if output is Format.TABLE:
            size = human_bytes(one.manifest.total_bytes) if one.manifest else "-"
            emit(f"{one.name}  {_verdict(one, wrong)}  {size}")
            for problem in wrong:
                emit(f"  {problem}")
    if output is not Format.TABLE:
        data = [
            {"name": one.name, "verdict": _verdict(one, wrong), "problems": wrong} for one, wrong in results
        ]
        emit(document({"location": str(contents.location), "checkpoints": data}, output))
    # A save that did not end is no damage, unless it was asked for by its name.
    bad = [one.name for one, wrong in results if wrong and (names or one.state is not State.UNFINISHED)]
    if bad:
        raise Damaged(
            f"{counted(len(bad), 'checkpoint')} cannot be used: {', '.join(bad)}\n"
            "  hint: a run passes over it and goes on from the newest that is whole; `checkpoint rm` removes it"
        )


@checkpoint_app.command("export")
def export_command(
    place: Place,
    to: Annotated[
        Path, typer.Option("--to", help="The folder to make. An earlier export of the same run is replaced.")
    ],
    name: Annotated[
        str | None, typer.Argument(help="Name or step. Omit = the newest.", show_default=False)
    ] = None,
    trainer_python: Annotated[
        str, typer.Option("--trainer-python", envvar=ENV_TRAINER_PYTHON, help="Python that has the trainer.")
    ] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Replace the exported model of another run.")
    ] = False,
) -> None:
    """Make a folder that transformers loads, with weights as safetensors and the tokenizer."""
    if place.startswith(S3):
        if not name:
            raise Unreadable(f"{place}: which checkpoint?\n  hint: name it, as the run's status does")
        location, chosen, run_uid = place, name, ""
    else:
        contents = look(_folder(place))
        one = _named(contents, name) if name else contents.newest
        if one is None:
            raise Missing(
                f"{contents.location}: there is no whole checkpoint\n  hint: `checkpoint ls` shows what is"
            )
        if one.manifest is None:
            raise Damaged(f"{one.name}: {one.problem}\n  hint: `checkpoint ls` shows which ones are whole")
        location, chosen = FILE + str(contents.location), one.name
        run_uid = one.manifest.run_uid
    if not force and exported_by(to) not in (None, run_uid):
        raise Unreadable(
            f"--to {to}: the model of another run is there\n  hint: name a new folder, or add --force to replace it"
        )
    command = [
        "-m",
        "trainer.export",
        "--location",
        location,
        "--checkpoint",
        chosen,
        "--output",
        str(to.absolute()),
    ]
    if not trainer_python or not os.access(trainer_python, os.X_OK):
        raise Unreadable(
            f"--trainer-python {trainer_python or '(not given)'}: the weights are read with torch, in the trainer's "
            f"environment\n  hint: name its Python (make env prints it), or in the trainer image: "
            f"python {' '.join(command)}"
        )
    _run_trainer(trainer_python, command)
    emit(str(to.absolute()))


@checkpoint_app.command("rm")
def rm_command(
    place: Place,
    names: Annotated[list[str], typer.Argument(help="Names or steps.", show_default=False)],
    force: Annotated[
        bool, typer.Option("--force", help="Also the newest whole one, and one that is pinned.")
    ] = False,
) -> None:
    """Remove checkpoints. The newest whole one and pinned ones stay unless forced."""
    contents = look(_folder(place))
    chosen = [_named(contents, name) for name in names]
    for one in chosen:
        if force:
            continue
        if one.pinned:
            raise Unreadable(f"{one.name} is pinned\n  hint: remove pins/{one.name} first, or add --force")
        if one == contents.newest:
            raise Unreadable(
                f"{one.name} is the newest whole checkpoint: the run would go on from an older one, or not at all\n"
                "  hint: add --force if nobody needs it"
            )
    for one in chosen:
        remove(contents.location, one.name)
        emit(one.name)


def _folder(place: str) -> Path:
    """The folder that is meant. Raises UserError."""
    if Path(place).suffix in (".yaml", ".yml") and Path(place).is_file():
        spec, _ = load_spec(Path(place))
        place = str(spec["checkpoint"]["location"]["uri"])
    if place.startswith((PVC, S3)):
        kind = "a volume of the cluster" if place.startswith(PVC) else "a bucket"
        raise Unreadable(
            f"{place}: is in {kind}, and this command reads folders of this machine\n"
            "  hint: name the folder where it is mounted or copied to"
        )
    return Path(file_path(place) or place).absolute()


def _named(contents: Contents, name: str) -> Found:
    """By its name, or by its step when one checkpoint alone has it. Raises Missing."""
    found = [
        one for one in contents.found if one.name == name or (name.isdecimal() and one.step == int(name))
    ]
    if len(found) == 1:
        return found[0]
    if found:
        several = ", ".join(one.name for one in found)
        raise Unreadable(f"{name}: several checkpoints are of this step: {several}\n  hint: name one of them")
    raise Missing(
        f"{name}: there is no such checkpoint at {contents.location}\n  hint: `checkpoint ls` shows what is"
    )


def _row(one: Found, now: float) -> tuple[str, ...]:
    manifest = one.manifest
    tokens = manifest.scalars.get("tokens") if manifest else None
    return (
        one.name,
        str(one.step),
        str(one.epoch),
        human_count(tokens) if tokens is not None else "-",
        human_bytes(manifest.total_bytes) if manifest else "-",
        age(one.saved_at, now),
        one.state.value,
        "pinned" if one.pinned else "-",
    )


def _listing(contents: Contents) -> dict[str, Any]:
    newest = contents.newest
    return {
        "location": str(contents.location),
        "run": contents.owner or None,
        "newest": newest.name if newest else None,
        "checkpoints": [
            {
                "name": one.name,
                "step": one.step,
                "epoch": one.epoch,
                "state": one.state.value,
                "pinned": one.pinned,
                "savedAt": one.saved_at or None,
                "tokens": one.manifest.scalars.get("tokens") if one.manifest else None,
                "bytes": one.manifest.total_bytes if one.manifest else None,
                "digest": one.manifest.digest if one.manifest else None,
                "parent": one.manifest.parent if one.manifest else None,
                "problem": one.problem or None,
            }
            for one in contents.found
        ],
    }


def _verdict(one: Found, wrong: Sequence[str]) -> str:
    return one.state.value if one.manifest is None else "Damaged" if wrong else "Verified"


def _run_trainer(python: str, arguments: Sequence[str]) -> None:
    path = python_path(os.environ.get("PYTHONPATH", ""), checkout_roots())
    done = subprocess.run(
        [python, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Damaged("the export failed: " + "\n".join(said[-5:]))
