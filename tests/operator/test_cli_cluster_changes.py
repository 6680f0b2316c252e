"""Waiting for a run, following its logs and changing its size, as a user meets them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.operator.cluster_api import FakeApi
from tests.operator.cluster_calls import a_cluster, call
from tests.operator.status_builders import NOW, over, some_conditions

from trainingrun.api.errors import CliExit
from trainingrun.cli.cluster_state import progress_line
from trainingrun.ports import Conflict, Refused

# wait


def test_wait_returns_when_the_run_is_complete() -> None:
    api = a_cluster()

    def story(passed: float) -> None:
        if passed >= 60:
            api.add_run(conditions=over("Complete"))

    result = call(api, "wait", "demo", story=story)
    assert (result.exit_code, result.stdout) == (CliExit.OK, "demo: Complete, step 140/300\n")
    assert result.stderr == ""  # no terminal, no progress
    assert api.at - NOW == 60


@pytest.mark.parametrize(
    ("end", "outcome", "code"),
    [
        ("Complete", "Failed", CliExit.RUN_FAILED),
        ("Failed", "Failed", CliExit.OK),
        ("Failed", "Complete", CliExit.RUN_FAILED),
        ("either", "Complete", CliExit.OK),
        ("either", "Failed", CliExit.OK),
    ],
)
def test_the_exit_code_says_whether_it_ended_as_was_waited_for(end: str, outcome: str, code: int) -> None:
    result = call(a_cluster(conditions=over(outcome)), "wait", "demo", "--for", end)
    assert result.exit_code == code
    assert outcome in result.stdout


def test_wait_ends_when_its_time_is_over() -> None:
    api = a_cluster()
    result = call(api, "wait", "demo", "--timeout", "1m1s")
    assert result.exit_code == CliExit.TIMEOUT
    assert api.at - NOW == 61
    assert "not over yet: Training, step 140/300" in result.stdout
    data = json.loads(call(api, "wait", "demo", "--timeout", "5", "-o", "json").stdout)
    assert (data["timedOut"], data["outcome"], data["schemaVersion"]) == (True, None, 1)


def test_a_cluster_that_is_away_while_it_is_waited_for_is_waited_for_too() -> None:
    api = a_cluster()

    def story(passed: float) -> None:
        if passed == 2:
            api.away = 5
        if passed == 30:
            api.add_run(conditions=over("Complete"))

    assert call(api, "wait", "demo", story=story).exit_code == CliExit.OK


def test_a_run_that_needs_a_person_is_said_once_and_waited_for() -> None:
    stalled = some_conditions(Stalled=("True", "NoUsableCheckpoint", "all are damaged"))
    result = call(a_cluster(conditions=stalled), "wait", "demo", "--timeout", "20s")
    assert result.exit_code == CliExit.TIMEOUT
    assert result.stderr.count("demo: needs a person: NoUsableCheckpoint: all are damaged") == 1


@pytest.mark.parametrize("again", [False, True])
def test_a_run_that_is_deleted_while_it_is_waited_for_is_missing(again: bool) -> None:
    api = a_cluster()

    def story(passed: float) -> None:
        api.objects = {key: item for key, item in api.objects.items() if item.get("kind") != "TrainingRun"}
        if again:
            api.add_run(uid="new")

    result = call(api, "wait", "demo", story=story)
    assert result.exit_code == CliExit.MISSING
    assert "was deleted" in result.stderr


def test_the_progress_is_one_line_whatever_the_run_does() -> None:
    api = FakeApi()
    line = progress_line(api.add_run(), NOW)
    assert line == "step 140/300  loss 3.418  10,503 tok/s  nodes 2/2  epoch 2  ETA 1m02s"
    recovering = some_conditions(Ready=("False", "Recovering", "node-1\n lost"))
    line = progress_line(api.add_run(conditions=recovering), NOW)
    assert line.endswith("ETA -  (Recovering: node-1; lost)")
    assert progress_line(api.add_run(conditions=recovering, progress=None), NOW) == "Recovering: node-1; lost"


def test_a_timeout_that_is_no_duration_is_refused() -> None:
    result = call(a_cluster(), "wait", "demo", "--timeout", "soon")
    assert result.exit_code == CliExit.BAD_INPUT
    assert "--timeout 'soon': is no duration" in result.stderr


# logs


def test_logs_are_merged_in_the_order_of_time_with_the_pod_before_each_line() -> None:
    api = a_cluster()
    api.log("demo-0-0", (1, "[rank 0] one"), (3, "[rank 0] three"))
    api.log("demo-1-1", (2, "[rank 2] two"))
    result = call(api, "logs", "demo")
    assert result.stdout.splitlines() == [
        "demo-0-0 | [rank 0] one",
        "demo-1-1 | [rank 2] two",
        "demo-0-0 | [rank 0] three",
    ]


def test_logs_of_one_rank_or_one_seat_have_no_pod_before_them() -> None:
    api = a_cluster()
    api.log("demo-0-0", (1, "[rank 0] one"), (2, "[rank 10] other"), (3, "agent"))
    api.log("demo-1-1", (4, "[rank 1] two"))
    assert call(api, "logs", "demo", "--rank", "1").stdout == "[rank 1] two\n"
    assert call(api, "logs", "demo", "--slot", "0").stdout.splitlines()[-1] == "agent"
    nobody = call(api, "logs", "demo", "--rank", "9")
    assert nobody.stdout == ""
    assert "no line of rank 9 is there; its ranks are 0 to 3" in nobody.stderr


def test_only_the_newest_lines_are_shown_when_asked_for() -> None:
    api = a_cluster()
    api.log("demo-0-0", (1, "a"), (2, "b"), (3, "c"))
    api.log("demo-1-1", (4, "d"))
    assert call(api, "logs", "demo", "--tail", "1").stdout.splitlines() == ["demo-0-0 | c", "demo-1-1 | d"]


def test_the_container_before_has_its_own_log() -> None:
    api = a_cluster()
    api.log("demo-1-1", (1, "Traceback"), previous=True)
    result = call(api, "logs", "demo", "--previous")
    assert result.stdout == "demo-1-1 | Traceback\n"
    assert 'demo-0-0: no log: container "trainer"' in result.stderr


def test_lines_as_data_are_one_object_each() -> None:
    api = a_cluster()
    api.log("demo-0-0", (1.25, "hello"))
    data = json.loads(call(api, "logs", "demo", "--slot", "0", "-o", "json").stdout)
    assert (data["pod"], data["slot"], data["text"], data["schemaVersion"]) == ("demo-0-0", 0, "hello", 1)
    assert data["time"].endswith(":01.250000000Z")


def test_following_shows_each_line_once_and_pods_that_come_later_until_the_run_is_over() -> None:
    api = a_cluster()
    api.log("demo-0-0", (0.1, "same"), (0.2, "same"))
    api.log("demo-1-1", (0.3, "first"))

    def story(passed: float) -> None:
        if passed == 1:
            api.log("demo-0-0", (0.9, "same"), (0.9, "same"))
        if passed == 2:
            api.add_pod(2)
            api.log("demo-2-0", (1.5, "late"))
        if passed == 4:
            api.add_run(conditions=over("Complete"))
            for slot, incarnation in ((0, 0), (1, 1), (2, 0)):
                api.add_pod(slot, incarnation, phase="Succeeded")
            api.log("demo-0-0", (3.5, "last"))

    lines = call(api, "logs", "demo", "-f", story=story).stdout.splitlines()
    assert lines == [
        "demo-0-0 | same",
        "demo-0-0 | same",
        "demo-1-1 | first",
        "demo-0-0 | same",
        "demo-0-0 | same",
        "demo-2-0 | late",
        "demo-0-0 | last",
    ]
    assert api.at - NOW == 4


def test_a_container_that_began_anew_while_it_is_followed_is_read_to_its_end() -> None:
    api = a_cluster()
    api.log("demo-0-0", (0.1, "before"))
    api.log("demo-1-1", (0.1, "other"))

    def story(passed: float) -> None:
        if passed == 1:
            api.log("demo-0-0", (0.1, "before"), (0.6, "Traceback"), previous=True)
            api.logs["demo-0-0", False] = [(NOW + 0.8, "new agent")]
            api.add_pod(0, restarts=1)
        if passed == 2:
            api.objects = {key: item for key, item in api.objects.items() if "/pods/" not in key}
            api.add_run(conditions=over("Failed"))

    lines = call(api, "logs", "demo", "-f", "--slot", "0", story=story).stdout.splitlines()
    assert lines == ["before", "Traceback", "new agent"]


def test_what_a_container_said_at_its_end_is_told_though_the_new_one_has_no_log_yet() -> None:
    api = a_cluster()
    api.log("demo-0-0", (0.1, "before"))

    def story(passed: float) -> None:
        if passed == 1:
            api.log("demo-0-0", (0.1, "before"), (0.6, "Traceback"), previous=True)
            del api.logs["demo-0-0", False]
            api.add_pod(0, restarts=1)
        if passed == 2:
            api.log("demo-0-0", (1.8, "new agent"))
        if passed == 3:
            api.add_run(conditions=over("Failed"))
            api.add_pod(0, restarts=1, phase="Failed")

    lines = call(api, "logs", "demo", "-f", "--slot", "0", story=story).stdout.splitlines()
    assert lines == ["before", "Traceback", "new agent"]


def test_a_node_that_is_away_does_not_hide_the_logs_of_the_others() -> None:
    api = a_cluster()
    api.log("demo-0-0", (1, "here"))
    api.lost = {"demo-1-1"}
    result = call(api, "logs", "demo")
    assert (result.exit_code, result.stdout) == (CliExit.OK, "demo-0-0 | here\n")
    assert "demo-1-1: no log: the API server answered 500" in result.stderr


def test_logs_that_are_not_there_are_an_error_that_says_where_to_look() -> None:
    api = a_cluster()
    result = call(api, "logs", "demo")
    assert result.exit_code == CliExit.MISSING
    assert "hint: `trainingrun describe demo`" in result.stderr
    seat = call(api, "logs", "demo", "--slot", "5")
    assert (seat.exit_code, "its seats are 0, 1" in seat.stderr) == (CliExit.MISSING, True)
    assert call(api, "logs", "demo", "--slot", "0", "--rank", "0").exit_code == CliExit.BAD_INPUT
    assert call(api, "logs", "demo", "-f", "--previous").exit_code == CliExit.BAD_INPUT


# scale


def test_scale_changes_the_most_nodes_and_says_what_the_plan_makes_of_it() -> None:
    api = a_cluster()
    result = call(api, "scale", "demo", "--max", "4")
    assert (result.exit_code, result.stdout) == (CliExit.OK, "demo: maxNodes 2 -> 4\n")
    assert "the plan of demo-r1, which is frozen, ends at 2 nodes: of 4, 2 will train" in result.stderr
    data = json.loads(call(api, "scale", "demo", "--max", "1", "-o", "json").stdout)
    assert (data["maxNodesBefore"], data["maxNodes"], data["schemaVersion"]) == (4, 1, 1)
    assert call(api, "scale", "demo", "--max", "1").stdout == "demo: maxNodes is 1 already\n"


@pytest.mark.parametrize(
    ("most", "words"), [("2", "less than spec.scale.minNodes (3)"), ("5000", "more than 4096")]
)
def test_scale_refuses_what_the_run_cannot_be(most: str, words: str) -> None:
    api = a_cluster()
    next(iter(api.objects.values()))["spec"]["scale"] = {"minNodes": 3, "maxNodes": 4}
    result = call(api, "scale", "demo", "--max", most)
    assert result.exit_code == CliExit.BAD_INPUT
    assert words in result.stderr
    assert not any(verb == "patch" for verb, _ in api.asked)


def test_scale_of_a_run_that_is_over_is_refused() -> None:
    result = call(a_cluster(conditions=over("Complete")), "scale", "demo", "--max", "1")
    assert result.exit_code == CliExit.BAD_INPUT
    assert "is over (Complete)" in result.stderr


@pytest.mark.parametrize("error", [Refused("Invalid", "spec.scale: no"), Conflict("changed")])
def test_the_own_words_of_a_cluster_that_does_not_take_a_change_are_shown(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise error

    monkeypatch.setattr(FakeApi, "patch", refuse)
    result = call(a_cluster(), "scale", "demo", "--max", "1")
    assert result.exit_code == CliExit.BAD_INPUT
    assert str(error) in result.stderr
