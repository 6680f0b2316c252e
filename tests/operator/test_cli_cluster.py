"""The verbs against a cluster as a user meets them: what is shown of a run, and how errors read."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from tests.operator.cluster_api import FakeApi, an_epoch_record
from tests.operator.cluster_calls import a_cluster, call
from tests.operator.status_builders import NOW, a_status, over, some_conditions
from typer.testing import CliRunner

from trainingrun.api.conditions import timestamp
from trainingrun.api.errors import CliExit
from trainingrun.cli.cluster_rbac import NEEDS, SEARCH
from trainingrun.cli.main import app
from trainingrun.protocol.exit_codes import ExitCode
from trainingrun.protocol.records import RankExit, RestoreSource, Trigger

# list


def test_list_shows_each_run_with_its_state_and_progress() -> None:
    api = a_cluster()
    api.add_run("fresh", uid="other", conditions=None, progress=None, membership=None, goodput=None)
    result = call(api, "list")
    header, *rows = result.stdout.splitlines()
    assert header == "NAME   TASK      STATE     NODES  STEP     LOSS    EPOCH  GOODPUT  CHECKPOINT  AGE"
    told = "demo pretrain Training 2/2 140/300 3.4182 2 94.1 % 120 20m00s"
    assert " ".join(rows[0].split()) == told
    assert rows[1].split()[2:5] == ["Pending", "-", "-"]


def test_list_of_all_namespaces_says_which() -> None:
    api = a_cluster()
    api.add_run("elsewhere", space="team-b", uid="other")
    assert "elsewhere" not in call(api, "list").stdout
    lines = call(api, "list", "-A").stdout.splitlines()
    assert lines[0].startswith("NAMESPACE")
    assert [line.split()[0] for line in lines[1:]] == ["team-a", "team-b"]


def test_names_are_as_kubectl_prints_them() -> None:
    assert call(a_cluster(), "list", "-o", "name").stdout == "trainingrun.trainingrun.dev/demo\n"


def test_list_without_runs_says_so_and_prints_no_data() -> None:
    result = call(FakeApi(), "list")
    assert (result.exit_code, result.stdout) == (CliExit.OK, "")
    assert "no runs in namespace team-a (context kind-test)" in result.stderr
    assert json.loads(call(FakeApi(), "list", "-o", "json").stdout) == {"schemaVersion": 1, "runs": []}


# describe


def test_describe_tells_state_size_plan_progress_and_goodput() -> None:
    text = call(a_cluster(), "describe", "demo").stdout
    assert text.startswith("demo in team-a, pretrain, created 20m00s ago, revision demo-r1\n")
    for part in (
        "Training: 2 of 2 nodes",
        "2 of 2 nodes train; minNodes 1, maxNodes 2",
        "tensor 1 x shard 2 x pipeline 1 x replicate 2 = 4 processes",
        "micro-batch 4 x 2; 390 ms a step, 410 ms predicted",
        "memory 812 MiB of 2.0 GiB a process",
        "2 copies of the state: 1 node may be lost",
        "why: data parallelism alone fits",
        "step 140/300 [##############                ] 47 %; done in 1m02s",
        "loss 3.4182, 10,503 tokens/s, 573,440 tokens; heard 3s ago",
        "durable: step 120, saved 4m02s ago: pvc://claim/demo/step-00000120.e0002",
        "memory: step 139",
        "Infrastructure 1; 1 step trained again",
        "94.1 %: 18m49s of 20m00s were steps that counted",
        "recovering",
    ):
        assert part in text, part
    assert "Not as it should be" not in text
    assert "note:" not in text


def test_each_epoch_says_who_was_lost_where_it_went_on_and_what_it_cost() -> None:
    text = call(a_cluster(), "describe", "demo").stdout
    first, second = rows_after(text, "Epochs", 2)
    assert "Started" in first
    assert "node-0, node-1" in first
    assert "initial weights" in first
    for part in ("Infrastructure (MemberLost)", "slot 1 on node-1: Silent", "step 120, memory", "1.8 s"):
        assert part in second


def test_a_dead_process_is_told_with_its_seat_node_and_exit_code() -> None:
    api = a_cluster()
    exits = (RankExit(0, 1, 137), RankExit(0, 0, 0), RankExit(1, 0, 137))
    source = RestoreSource.DURABLE
    api.add_record(an_epoch_record(3, exits=exits, restore_step=100, source=source, last_step=130))
    row = rows_after(call(api, "describe", "demo").stdout, "Epochs", 3)[2]
    assert "a rank of slot 0 on node-0: exit code 137" in row
    assert "ProcessDied" in row
    assert "step 100, durable checkpoint" in row
    assert row.split()[-2:] == ["30", "-"]


def test_a_restore_that_failed_is_told_with_what_was_damaged_or_that_it_was_only_not_fetched() -> None:
    api, failed = a_cluster(), {"trigger": Trigger.RESTORE_FAILED, "restore_step": 100}
    api.add_record(an_epoch_record(3, exits=(RankExit(1, 0, ExitCode.NOT_FETCHED),), **failed))
    api.add_record(an_epoch_record(4, exits=(RankExit(1, 0, 65),), damaged=("memory:x",), **failed))
    *_, not_fetched, damaged = rows_after(call(api, "describe", "demo").stdout, "Epochs", 4)
    assert "slot 1 on node-1: could not fetch the state" in not_fetched
    assert "memory:x damaged" in damaged


def test_only_the_newest_epochs_are_shown_unless_all_are_wanted() -> None:
    api = a_cluster()
    for number in range(3, 9):
        api.add_record(an_epoch_record(number, restore_step=120))
    text = call(api, "describe", "demo", "--epochs", "2").stdout
    assert "Epochs (the newest 2 of 8)" in text
    assert [row.split()[0] for row in rows_after(text, "Epochs", 2)] == ["7", "8"]
    assert len(json.loads(call(api, "describe", "demo", "-o", "json").stdout)["epochs"]) == 8
    assert rows_after(call(api, "describe", "demo", "--epochs", "0").stdout, "Epochs", 8)


def test_pods_that_need_a_look_are_shown_before_many_that_are_well() -> None:
    api = a_cluster()
    for slot in range(2, 40):
        api.add_pod(slot, node="node-0")
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    api.add_pod(40, phase="Pending", node="", waiting=waiting)
    text = call(api, "describe", "demo").stdout
    assert "ImagePullBackOff: no such image" in text
    assert "and 29 Running" in text
    rows = rows_after(text, "Pods", 12)
    assert [row.split()[0] for row in rows] == [*map(str, range(11)), "40"]
    assert rows[1].split()[1:5] == ["demo-1-1", "node-2", "Running", "2"]


def test_a_pod_on_a_node_that_does_not_answer_says_so() -> None:
    api = a_cluster()
    api.add_node("node-2", ready=False)
    text = call(api, "describe", "demo").stdout
    assert "NodeLost: node node-2 is not ready" in text


def test_a_pod_or_record_of_another_owner_is_not_shown() -> None:
    api = a_cluster()
    api.add_pod(7, owner="somebody")
    api.add_record(an_epoch_record(9), owner="somebody")
    data = json.loads(call(api, "describe", "demo", "-o", "json").stdout)
    assert [pod["slot"] for pod in data["pods"]] == [0, 1]
    assert [epoch["epoch"] for epoch in data["epochs"]] == [1, 2]


def test_conditions_that_are_not_as_they_should_be_come_with_their_messages() -> None:
    stale = ("False", "CheckpointStale", "step 120 is older than 3 intervals")
    busy = ("True", "Recovering", "epoch 2, nodes: 1")
    conditions = some_conditions(
        CheckpointFresh=stale, Ready=("False", "Recovering", "epoch 2, nodes: 1"), Reconciling=busy
    )
    text = call(a_cluster(conditions=conditions), "describe", "demo").stdout
    assert "State        Recovering: epoch 2, nodes: 1" in text
    assert "CheckpointFresh is False, CheckpointStale: step 120 is older than 3 intervals" in text
    assert "Reconciling is" not in text  # it says what the state says


def test_a_failed_run_tells_the_first_cause_and_the_last_output() -> None:
    failure = {
        "cause": "Application",
        "slot": 1,
        "node": "node-1",
        "exitCode": 1,
        "message": "Error\n\x1b[2Jbad",
    }
    text = call(a_cluster(conditions=over("Failed"), failure=failure), "describe", "demo").stdout
    assert "first cause: Application" in text
    assert "slot 1, node node-1, exit code 1" in text
    assert "\x1b" not in text


def test_a_run_that_is_over_says_since_when_and_promises_no_end() -> None:
    text = call(a_cluster(conditions=over("Complete")), "describe", "demo").stdout
    assert "State        Completed: done\n             Complete 10m00s ago" in text
    assert "done in" not in text


def test_a_run_that_nobody_has_looked_at_points_at_the_controller() -> None:
    api = FakeApi()
    run = api.add_run()
    run["status"] = {}
    text = call(api, "describe", "demo").stdout
    assert "State        Pending" in text
    assert "no nodes yet; minNodes 1, maxNodes 2" in text
    assert "note: the controller has not looked at this run yet" in text


def test_a_spec_that_was_not_acted_on_yet_is_said() -> None:
    api = a_cluster()
    next(iter(api.objects.values()))["metadata"]["generation"] = 2
    assert "note: the controller has not acted on the newest spec yet" in call(api, "describe", "demo").stdout


def test_what_may_not_be_looked_at_is_said_and_the_rest_is_shown() -> None:
    api = a_cluster()
    api.forbidden = {"events", "nodes"}
    result = call(api, "describe", "demo")
    assert result.exit_code == CliExit.OK
    assert "note: events could not be looked at: events is forbidden" in result.stdout
    assert "note: nodes could not be looked at" in result.stdout
    assert "demo-0-0" in result.stdout


def test_a_record_that_cannot_be_read_does_not_hide_the_others() -> None:
    api = a_cluster()
    api.add_record(an_epoch_record(3))["data"] = {"name": 3}
    text = call(api, "describe", "demo").stdout
    assert "note: ControllerRevision demo-e3: data:" in text
    assert len(rows_after(text, "Epochs", 2)) == 2


@pytest.mark.parametrize("outcome", [None, "Complete", "Failed"])
def test_the_last_epoch_has_a_next_step_while_it_trains_and_when_the_run_is_over(outcome: str | None) -> None:
    """It grew: no disruption tells how long it took, and no record follows."""
    stepping = {
        "epoch": 3,
        "firstStep": 141,
        "firstStepAtMillis": round((NOW - 199) * 1000),
        "lastStep": 150,
        "lastStepAtMillis": round((NOW - 190) * 1000),
        "tokens": 614400,
        "stepMicros": 100000,
    }
    accounting = {**a_status()["accounting"], "stepping": stepping}
    ended = {} if outcome is None else {"conditions": over(outcome)}
    api = a_cluster(accounting=accounting, **ended)
    grown = an_epoch_record(3, trigger=Trigger.JOINED, restore_step=140, last_step=140, at=NOW - 200)
    api.add_record(grown)
    rows = rows_after(call(api, "describe", "demo").stdout, "Epochs", 3)
    assert rows[-1].split()[0] == "3"
    assert rows[-1].endswith("2.0 s")


def test_an_epoch_that_lost_members_and_counts_as_no_disruption_was_scaled_down() -> None:
    api = a_cluster(disruptions={"accountedEpoch": 2, "byCause": [], "lostSteps": 0, "recent": []})
    story = json.loads(call(api, "describe", "demo", "-o", "json").stdout)["epochs"][1]
    assert (story["cause"], story["disruption"]) == ("Shrinking", False)


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_the_story_as_data_has_a_version_and_all_parts(form: str, read: Any) -> None:
    result = call(a_cluster(), "describe", "demo", "-o", form)
    data = read(result.stdout)
    assert (data["schemaVersion"], data["state"], data["ready"]) == (1, "Training", True)
    assert data["progress"]["step"] == 140
    assert data["epochs"][1]["losses"] == ["slot 1 on node-1: Silent"]
    assert data["epochs"][1]["nextStepSeconds"] == 1.8
    assert data["pods"][1]["restarts"] == 2
    assert [event["reason"] for event in data["events"]] == ["EpochStarted", "NodeLost", "BackOff"]
    assert "accounting" not in data
    assert result.stderr == ""


# events


def test_events_are_those_of_the_run_and_its_pods_the_oldest_first() -> None:
    api = a_cluster()
    api.add_event("Killing", "of another run", 10, pod="demo-1-1-0")
    api.add_event("Started", "of a run before this one", 3600, pod="demo-0-0")
    api.add_event("Planned", "of a namesake", 10, uid="gone")
    lines = call(api, "events", "demo").stdout.splitlines()
    assert [line.split()[2] for line in lines[1:]] == ["EpochStarted", "NodeLost", "BackOff"]
    assert lines[3].split()[:4] == ["8m20s", "Warning", "BackOff", "demo-1-1"]
    assert lines[3].endswith("(x3)")


def test_an_event_that_was_said_again_has_the_time_of_the_last() -> None:
    api = FakeApi()
    api.add_run()
    series = {"count": 7, "lastObservedTime": nano(NOW - 5)}
    api.add_event("WaitingForNodes", "1 of 2", 900, series=series)
    data = json.loads(call(api, "events", "demo", "-o", "json").stdout)["events"]
    assert data[0]["count"] == 7
    assert call(api, "events", "demo").stdout.splitlines()[1].startswith("5s")


# errors and help

VERBS = [
    ["describe", "demo"],
    ["events", "demo"],
    ["logs", "demo"],
    ["wait", "demo"],
    ["scale", "demo", "--max", "1"],
]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_a_run_that_is_not_there_says_where_and_which_may_be_meant(verb: list[str]) -> None:
    api = FakeApi()
    api.add_run("dmo")
    result = call(api, *verb)
    assert (result.exit_code, result.stdout) == (CliExit.MISSING, "")
    assert "run demo: there is no such TrainingRun in namespace team-a (context kind-test)" in result.stderr
    assert "hint: did you mean dmo?" in result.stderr


def test_a_run_of_another_namespace_is_pointed_at() -> None:
    api = FakeApi()
    api.add_run(space="team-b")
    assert "hint: there is one in team-b: -n team-b" in call(api, "describe", "demo").stderr
    assert call(api, "describe", "demo", "-n", "team-b").exit_code == CliExit.OK
    api.add_run("unlike")
    api.objects.pop(next(key for key in api.objects if "team-b" in key))
    assert "hint: there are unlike" in call(api, "describe", "demo").stderr
    api.forbidden = {"trainingruns.trainingrun.dev"}
    forbidden = call(api, "describe", "demo")
    assert forbidden.exit_code == CliExit.UNREACHABLE
    assert "`describe` needs get trainingruns.trainingrun.dev, list pods (optional)" in forbidden.stderr


@pytest.mark.parametrize("verb", [["list"], *VERBS], ids=lambda verb: verb[0])
def test_a_cluster_without_our_kind_or_that_is_away_is_one_clear_error(verb: list[str]) -> None:
    stranger = call(FakeApi(unknown_kind=True), *verb)
    assert stranger.exit_code == CliExit.MISSING
    assert "knows no TrainingRun" in stranger.stderr
    away = call(FakeApi(away=99), *verb)
    assert (away.exit_code, away.stdout) == (CliExit.UNREACHABLE, "")
    assert away.stderr.startswith("error: the cluster of context kind-test cannot be reached: ")
    assert "Traceback" not in away.stderr


@pytest.mark.parametrize("name", ["../pods/x", "Demo", "a b", ""])
def test_a_name_that_cannot_be_one_is_never_asked_for(name: str) -> None:
    api = a_cluster()
    assert call(api, "describe", name).exit_code == CliExit.BAD_INPUT
    assert call(api, "list", "-n", "a/b").exit_code == CliExit.BAD_INPUT
    assert api.asked == set()


def test_each_verb_asks_for_nothing_but_what_its_help_lists() -> None:
    for verb in [["list"], *VERBS]:
        api = a_cluster()
        api.log("demo-0-0", (1, "x"))
        call(api, *verb, *(["--timeout", "1"] if verb[0] == "wait" else []))
        listed = {(each, need.resource) for need in NEEDS[verb[0]] for each in need.verbs}
        assert api.asked == listed, verb
        page = " ".join(call(api, verb[0], "--help").stdout.split())
        assert all(need.resource in page.replace("- ", "-") for need in NEEDS[verb[0]]), page
    assert (SEARCH.verbs, SEARCH.resource) == (("list",), "trainingruns.trainingrun.dev")


def test_no_kubeconfig_and_a_missing_context_are_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    result = CliRunner().invoke(app, ["list"])
    assert result.exit_code == CliExit.BAD_INPUT
    assert "no access to a Kubernetes cluster" in result.stderr
    (tmp_path / "none").write_text(yaml.safe_dump(KUBECONFIG))
    missing = CliRunner().invoke(app, ["list", "--context", "prod"])
    assert missing.exit_code == CliExit.BAD_INPUT
    assert "prod" in missing.stderr


def test_the_namespace_is_that_of_the_context(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(KUBECONFIG))
    monkeypatch.setenv("KUBECONFIG", str(path))
    result = CliRunner().invoke(app, ["list"])  # nobody listens at this address
    assert result.exit_code == CliExit.UNREACHABLE
    assert "/namespaces/team-z/" in result.stderr
    assert "context kind-z" in result.stderr
    other = CliRunner().invoke(app, ["list", "--context", "plain"])
    assert "/namespaces/default/" in other.stderr


KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "kind-z",
    "clusters": [{"name": "here", "cluster": {"server": "http://127.0.0.1:9"}}],
    "users": [{"name": "ann", "user": {"token": "x"}}],
    "contexts": [
        {"name": "kind-z", "context": {"cluster": "here", "user": "ann", "namespace": "team-z"}},
        {"name": "plain", "context": {"cluster": "here", "user": "ann"}},
    ],
}


def rows_after(text: str, heading: str, count: int) -> list[str]:
    """The rows of the table under a heading."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(heading))
    return lines[start + 2 : start + 2 + count]


def nano(at: float) -> str:
    return timestamp(at).replace("Z", ".000000Z")
