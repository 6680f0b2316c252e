"""What a person sees while a local run goes on: one live line, and one line for each event.

With a terminal the line stays in place; without one, plain lines come at most every two seconds, and only
when they say something new. `status_line` is pure. It shows what the controller and membership say, and
works nothing out but the time that is left.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from trainingrun.ports import EventRecord
from trainingrun.protocol.messages import AgentPhase, Progress, RunView

PLAIN_SECONDS = 2.0
_STYLES = {"Warning": "yellow", "Normal": "cyan"}


@dataclass(frozen=True)
class Scene:
    """What is known at one moment."""

    view: RunView | None
    status: Mapping[str, Any]
    nodes_wanted: int


def status_line(scene: Scene) -> str:
    """`step 120/300  loss 3.412  12,840 tok/s  nodes 2/2  epoch 1  ETA 1m02s`, or what the start-up does."""
    view = scene.view
    if view is None:
        return _without_membership(scene)
    if view.progress is None or not any(member.in_epoch for member in view.members):
        return _start_up(scene, view)
    progress = view.progress
    training = sum(member.in_epoch and member.phase is AgentPhase.RUNNING for member in view.members)
    line = training_line(
        f"{progress.step}/{progress.total_steps}",
        progress.loss,
        progress.tokens_per_second,
        f"{training}/{scene.nodes_wanted}",
        view.epoch,
        seconds_left(progress),
    )
    activities = _activities(view)
    return line + (f"  ({activities})" if activities else "")


def training_line(
    steps: str, loss: float, tokens_per_second: float, nodes: str, epoch: int, left: float | None
) -> str:
    """`steps` and `nodes`: `done/all`; `left`: seconds to the end, None when it is not known."""
    parts = [
        f"step {steps}",
        f"loss {loss:.3f}",
        f"{tokens_per_second:,.0f} tok/s",
        f"nodes {nodes}",
        f"epoch {epoch}",
        f"ETA {duration(left)}",
    ]
    return "  ".join(parts)


def _without_membership(scene: Scene) -> str:
    progress = scene.status.get("progress")
    if not progress:
        return "starting the membership service"
    step, total = progress["step"], progress["totalSteps"]
    return f"step {step}/{total} as last heard; membership does not answer, training goes on"


def _start_up(scene: Scene, view: RunView) -> str:
    activities = _activities(view)
    if view.blocked:
        return f"blocked: {view.blocked}"
    if view.epoch == 0 and not scene.status.get("resolved"):
        return "making a plan"
    if activities:
        return activities
    return f"starting: {view.waiting_for}" if view.waiting_for else "starting"


def _activities(view: RunView) -> str:
    """`node-0, node-1: preparing data: tokenising`: what members do besides training."""
    doing: dict[str, list[str]] = {}
    for member in view.members:
        text = member.activity or ("warming up" if member.phase is AgentPhase.PREPARING else "")
        if text:
            doing.setdefault(text, []).append(member.node)
    return "; ".join(f"{', '.join(nodes)}: {text}" for text, nodes in doing.items())


def seconds_left(progress: Progress) -> float | None:
    """None while no step time is known."""
    steps = max(0, progress.total_steps - progress.step)
    if progress.summary.step_seconds > 0:
        return steps * progress.summary.step_seconds
    if progress.tokens_per_second > 0 and progress.step > 0:
        return steps * (progress.tokens / progress.step) / progress.tokens_per_second
    return None


def duration(seconds: float | None) -> str:
    """`42s`, `1m02s`, `3h05m`; `-` when it is not known."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def event_line(event: EventRecord) -> str:
    """`14:03:12  NodeLost  node-1 lost …`, in local time."""
    clock = datetime.fromtimestamp(event.at).strftime("%H:%M:%S")
    return f"{clock}  {event.reason:<16}  {event.message}"


class LiveView:
    """Draws on `console` (standard error). `close` leaves the terminal as it was."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(Text(""), console=console, refresh_per_second=4, transient=True)
        self._plain = not console.is_terminal
        self._last_line = ""
        self._last_at = 0.0
        if not self._plain:
            self._live.start()

    def show(self, scene: Scene, now: float) -> None:
        """`now`: monotonic seconds."""
        self.line(status_line(scene), now)

    def line(self, line: str, now: float) -> None:
        """Show this line in place of the one before. `now`: monotonic seconds."""
        if not self._plain:
            self._live.update(Text(line, style="bold", no_wrap=True, overflow="ellipsis"))
        elif line != self._last_line and now - self._last_at >= PLAIN_SECONDS:
            self._last_line, self._last_at = line, now
            self._print(line)

    def event(self, event: EventRecord) -> None:
        self._print(event_line(event), _STYLES.get(event.type, ""))

    def note(self, reason: str, text: str, style: str = "") -> None:
        """A line of our own, in the form of an event."""
        self._print(event_line(EventRecord(time.time(), "Normal", reason, text)), style)

    def close(self) -> None:
        if not self._plain:
            self._live.update(Text(""))
            self._live.stop()

    def _print(self, line: str, style: str = "") -> None:
        self._console.print(Text(line, style=style), soft_wrap=True)
