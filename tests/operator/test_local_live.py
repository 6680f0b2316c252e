"""The live line and the event lines of a local run."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from trainingrun.cli.live import LiveView, Scene, duration, event_line, status_line
from trainingrun.ports import EventRecord
from trainingrun.protocol.messages import AgentPhase, MemberView, Progress, RunView
from trainingrun.protocol.records import EpochSummary


def a_member(slot: int, phase: AgentPhase = AgentPhase.RUNNING, **changes: Any) -> MemberView:
    values: dict[str, Any] = {"epoch": 1, "activity": "", "silent_seconds": 0.1, "in_epoch": True, **changes}
    return MemberView(slot=slot, incarnation=0, node=f"node-{slot}", phase=phase, **values)


def a_scene(*members: MemberView, progress: Progress | None = None, **changes: Any) -> Scene:
    values: dict[str, Any] = {"epoch": 1, "waiting_for": "", "blocked": "", **changes}
    view = RunView(
        run_uid="uid",
        members=members,
        progress=progress,
        proposing=False,
        restore=None,
        suspicious_of_self=False,
        **values,
    )
    return Scene(view, {}, nodes_wanted=2)


def some_progress(step: int = 120, step_seconds: float = 0.344) -> Progress:
    summary = EpochSummary(step_seconds=step_seconds)
    return Progress(step, 3.41234, step * 4096, 12840.4, 0.001, 300, summary)


def test_a_training_run_shows_step_loss_speed_nodes_epoch_and_time_left() -> None:
    scene = a_scene(a_member(0), a_member(1), progress=some_progress())
    assert status_line(scene) == "step 120/300  loss 3.412  12,840 tok/s  nodes 2/2  epoch 1  ETA 1m02s"


def test_before_a_step_time_is_known_the_time_left_is_taken_from_the_speed() -> None:
    scene = a_scene(a_member(0), progress=some_progress(step_seconds=0.0))
    assert "ETA 57s" in status_line(scene)
    assert "nodes 1/2" in status_line(scene)


def test_a_node_that_joins_is_shown_beside_the_training() -> None:
    joining = a_member(1, AgentPhase.PREPARING, in_epoch=False)
    line = status_line(a_scene(a_member(0), joining, progress=some_progress()))
    assert line.endswith("(node-1: warming up)")
    assert "nodes 1/2" in line


def test_the_start_up_shows_what_each_node_does() -> None:
    first = a_member(0, AgentPhase.PREPARING, in_epoch=False, activity="preparing data: tokenising")
    second = a_member(1, AgentPhase.PREPARING, in_epoch=False)
    third = a_member(2, AgentPhase.PREPARING, in_epoch=False)
    line = status_line(a_scene(first, second, third))
    assert line == "node-0: preparing data: tokenising; node-1, node-2: warming up"


def test_the_start_up_says_what_it_waits_for() -> None:
    planned = {"resolved": {"revision": "demo-r1"}}
    waiting = replace(a_scene(waiting_for="0 of 1 nodes", epoch=0), status=planned)
    assert status_line(waiting) == "starting: 0 of 1 nodes"
    assert status_line(replace(a_scene(epoch=0), status=planned)) == "starting"
    assert status_line(a_scene(epoch=0)) == "making a plan"


def test_a_block_that_only_a_person_can_remove_is_shown() -> None:
    assert status_line(a_scene(blocked="NoUsableCheckpoint: all are damaged")).startswith("blocked: NoUsable")


def test_without_membership_the_last_known_step_is_shown() -> None:
    assert status_line(Scene(None, {}, 2)) == "starting the membership service"
    known = Scene(None, {"progress": {"step": 7, "totalSteps": 300}}, 2)
    assert status_line(known) == "step 7/300 as last heard; membership does not answer, training goes on"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.4, "0s"), (59.4, "59s"), (62, "1m02s"), (3600, "1h00m"), (11100, "3h05m")],
)
def test_durations_for_people(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_an_event_is_one_line_with_the_time() -> None:
    line = event_line(EventRecord(0.0, "Warning", "NodeLost", "node-1 lost"))
    assert line[2] == line[5] == ":"
    assert line[8:] == "  NodeLost          node-1 lost"


def test_without_a_terminal_lines_are_plain_new_and_not_too_many() -> None:
    out = io.StringIO()
    view = LiveView(Console(file=out, highlight=False, width=200))
    for now in (10.0, 10.5, 11.0, 12.5):
        view.show(a_scene(a_member(0), progress=some_progress(step=int(now * 10))), now)
    view.show(a_scene(a_member(0), progress=some_progress(step=125)), 20.0)  # nothing new
    view.event(EventRecord(0.0, "Warning", "NodeLost", "node-1 lost [at once]"))
    view.close()
    lines = out.getvalue().splitlines()
    assert [line.split()[1] for line in lines[:2]] == ["100/300", "125/300"]
    assert lines[2].endswith("node-1 lost [at once]")
    assert len(lines) == 3
    assert "\x1b" not in out.getvalue()


def test_with_a_terminal_events_stay_and_the_live_line_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = io.StringIO()
    view = LiveView(Console(file=out, force_terminal=True, width=120, legacy_windows=False, _environ={}))
    view.show(a_scene(a_member(0), progress=some_progress()), 10.0)
    view.event(EventRecord(0.0, "Warning", "NodeLost", "node-1 lost"))
    view.close()
    assert "NodeLost" in out.getvalue()
    assert "\x1b[33m" in out.getvalue()


def test_no_color_is_honoured() -> None:
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=True, width=120, legacy_windows=False, _environ={"NO_COLOR": "1"}
    )
    view = LiveView(console)
    view.event(EventRecord(0.0, "Warning", "NodeLost", "node-1 lost"))
    view.close()
    assert "\x1b[33m" not in out.getvalue()
