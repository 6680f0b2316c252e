"""The `trainingrun` program: its commands, and one place where an error becomes a message and an exit code.

Heavy commands are imported when they are called, so that `plan` starts at once.
"""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperGroup

from trainingrun.api.errors import UserError
from trainingrun.cli import plan
from trainingrun.cli.output import print_error

_CLUSTER = ("trainingrun.cli.cluster_commands", "cluster_app")
_LATER = {  # command -> module, its Typer app
    "local": ("trainingrun.cli.local", "local_app"),
    "checkpoint": ("trainingrun.cli.checkpoint", "checkpoint_app"),
    "calibration": ("trainingrun.cli.calibration", "calibration_app"),
    "list": _CLUSTER,
    "describe": _CLUSTER,
    "wait": _CLUSTER,
    "logs": _CLUSTER,
    "events": _CLUSTER,
    "scale": _CLUSTER,
}

_EXIT_CODES = (
    "Exit codes: 0 done, 1 a fault of ours, 2 bad input, 3 no plan fits, 4 the run failed, or a checkpoint is damaged, "
    "5 a file or run that was named is not there, 6 the time to wait is over, "
    "7 the cluster does not answer or does not allow it, 130 stopped by Ctrl-C."
)


class Commands(TyperGroup):
    """The top level. An error that a user can act on is printed on stderr, without a traceback."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *_LATER]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _LATER:
            return super().get_command(ctx, cmd_name)
        module, attribute = _LATER[cmd_name]
        group = typer.main.get_group(getattr(importlib.import_module(module), attribute))
        if cmd_name in group.commands:  # one of several that stand at the top level
            return group.commands[cmd_name]
        group.name = cmd_name
        return group

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            print_error(error)
            raise typer.Exit(int(error.exit_code)) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Plan and run the training of language models.",
    epilog=_EXIT_CODES,
)
app.command("plan")(plan.plan_command)
app.command("explain")(plan.explain_command)
app.command("what-if")(plan.what_if_command)


@app.callback()
def _top() -> None:
    """Plan and run the training of language models."""
