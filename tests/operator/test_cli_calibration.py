"""`trainingrun calibration export` and `--calibration`: what a run measured corrects what is predicted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.operator.cluster_api import FakeApi
from tests.operator.cluster_calls import call as call_cluster
from tests.operator.control_builders import SPEC, an_epoch
from tests.operator.test_control_measured import planned_revision, summary
from typer.testing import CliRunner, Result

from trainingrun.api.errors import CliExit
from trainingrun.cli.calibration import of_local_run
from trainingrun.cli.calibration_files import calibration_document, read_calibration
from trainingrun.cli.main import app
from trainingrun.cluster.local.store import Store
from trainingrun.planner.feedback import Measurement
from trainingrun.protocol.records import MachineSpeed

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "tests" / "golden" / "run.yaml"


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def a_local_run(folder: Path, speed: MachineSpeed | None = None) -> tuple[Path, float]:
    """The state of a run that trained on two nodes, and what was predicted for a step there."""
    store, revision = Store(folder), planned_revision()
    run = store.apply({"metadata": {"name": revision.run}, "spec": SPEC}, 1.0)
    predicted = float(revision.plan["rungs"][1]["stepSeconds"])
    store.create_record(replace(revision, run_uid=run.uid))
    store.create_record(replace(an_epoch(1), run_uid=run.uid, rung=revision.rungs[1]))
    told = replace(summary(1, steps=400, step_seconds=1.3 * predicted), speed=speed)
    store.create_record(replace(an_epoch(2), run_uid=run.uid, previous=told))
    return folder, predicted


def exported(folder: Path) -> Path:
    state, _ = a_local_run(folder / "state")
    path = folder / "calibration.json"
    result = call("calibration", "export", "demo", "--local", state)
    assert result.exit_code == CliExit.OK, result.stderr
    assert "2 nodes: step time x 1.300 of what was predicted" in result.stderr
    path.write_text(result.stdout)
    return path


def test_what_was_exported_corrects_the_plan_for_the_same_model_and_machines(tmp_path: Path) -> None:
    path = exported(tmp_path)
    before = json.loads(call("plan", "-f", EXAMPLE, "-o", "json").stdout)
    result = call("plan", "-f", EXAMPLE, "--calibration", path, "-o", "json")
    after = json.loads(result.stdout)
    assert before["machine"]["measuredFactors"] == {"memory": 1.0, "time": 1.0}
    assert 1.2 < after["machine"]["measuredFactors"]["time"] <= 1.3
    assert "1 measurement; memory x 1.000, step time x 1.2" in result.stderr
    for old, new in zip(before["rungs"], after["rungs"], strict=True):
        assert 1.2 < new["stepSeconds"] / old["stepSeconds"] <= 1.3
        assert new["axes"] == old["axes"]


def test_explain_and_what_if_are_corrected_as_the_plan_is(tmp_path: Path) -> None:
    path = exported(tmp_path)
    plan = json.loads(call("plan", "-f", EXAMPLE, "--nodes", "2", "--calibration", path, "-o", "json").stdout)
    document = json.loads(
        call("what-if", "-f", EXAMPLE, "--nodes", "2", "--calibration", path, "-o", "json").stdout
    )
    assert document["planner"]["stepSeconds"] == pytest.approx(plan["rungs"][0]["stepSeconds"])
    assert call("explain", "-f", EXAMPLE, "--calibration", path).exit_code == CliExit.OK


def test_a_file_about_other_hardware_corrects_nothing_and_says_so(tmp_path: Path) -> None:
    result = call("plan", "-f", EXAMPLE, "--hardware", "h100x8", "--calibration", exported(tmp_path))
    assert result.exit_code == CliExit.OK
    assert "nothing is corrected" in result.stderr


def test_more_memory_than_predicted_makes_a_plan_that_leaves_room_for_it(tmp_path: Path) -> None:
    data: dict[str, Any] = json.loads(exported(tmp_path).read_text())
    data["measurements"][0] |= {
        "peakBytes": 3_000_000_000,
        "predictedPeakBytes": 1_000_000_000,
        "steps": 1000,
    }
    path = tmp_path / "more.json"
    path.write_text(json.dumps(data))
    document = yaml.safe_load(EXAMPLE.read_text().replace("5e-3", "0.005"))
    document["spec"]["resources"]["perNode"]["memory"] = "1300Mi"
    manifest = tmp_path / "run.yaml"
    manifest.write_text(yaml.safe_dump(document))
    plain = json.loads(call("plan", "-f", manifest, "--nodes", "1", "-o", "json").stdout)["rungs"][0]
    result = call("plan", "-f", manifest, "--nodes", "1", "--calibration", path, "-o", "json")
    careful = json.loads(result.stdout)["rungs"][0]
    assert careful["microBatch"] < plain["microBatch"]
    assert careful["memory"]["total"] <= careful["availableBytes"] == plain["availableBytes"]


def test_files_are_read_as_they_were_written(tmp_path: Path) -> None:
    found = of_local_run(a_local_run(tmp_path / "state")[0], "demo")
    path = tmp_path / "file.json"
    path.write_text(json.dumps(calibration_document(found)))
    assert read_calibration(path) == found
    assert all(isinstance(one, Measurement) for one in found)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("nonsense", "cannot be read as JSON"),
        ({"kind": "Other"}, "kind: it is not a TrainingRunCalibration"),
        ({"version": 9}, "version: 9 is not known here"),
        ({"measurements": 3}, "measurements: a list is expected, not 3"),
        ({"measurements": [{"engine": 1}]}, "measurements[0].engine: a text is expected, not 1"),
        ({"measurements": [5]}, "measurements[0]: an object is expected"),
        ("[" * 100_000, "cannot be read as JSON"),
        ('{"kind": ' + "9" * 5000 + "}", "cannot be read as JSON"),
        ({"version": True}, "version: True is not known here"),
        ({"steps": -1}, "measurements[0].steps: -1 cannot be"),
        ({"steps": 10**400}, "measurements[0].steps: 1000"),
        ({"stepSeconds": float("nan")}, "measurements[0].stepSeconds: nan cannot be"),
        ({"stepSeconds": "fast"}, "measurements[0].stepSeconds: 'fast' cannot be"),
    ],
)
def test_files_that_are_something_else_are_refused_by_field(tmp_path: Path, change: Any, words: str) -> None:
    path = exported(tmp_path)
    data = json.loads(path.read_text())
    if isinstance(change, str):
        path.write_text(change)
    else:
        target = data["measurements"][0] if change.keys() & {"steps", "stepSeconds"} else data
        target |= change
        path.write_text(json.dumps(data))
    result = call("plan", "-f", EXAMPLE, "--calibration", path)
    assert result.exit_code == CliExit.BAD_INPUT
    assert words in result.stderr
    assert call("plan", "-f", EXAMPLE, "--calibration", tmp_path / "none").exit_code == CliExit.MISSING


def test_a_run_that_has_measured_nothing_says_so(tmp_path: Path) -> None:
    store, revision = Store(tmp_path), planned_revision()
    run = store.apply({"metadata": {"name": revision.run}, "spec": SPEC}, 1.0)
    store.create_record(replace(revision, run_uid=run.uid))
    result = call("calibration", "export", "demo", "--local", tmp_path)
    assert result.exit_code == CliExit.MISSING
    assert "no size of it trained 5 steps in one epoch" in result.stderr
    assert call("calibration", "export", "other", "--local", tmp_path).exit_code == CliExit.MISSING


def test_a_run_on_a_cluster_is_read_from_its_records_and_status() -> None:
    api, revision = FakeApi(), planned_revision()
    uid = api.add_run(
        accounting={
            "stepping": {
                "epoch": 1, "firstStep": 1, "firstStepAtMillis": 1000, "lastStep": 90, "lastStepAtMillis": 2000,
                "tokens": 1, "stepMicros": 500_000, "peakBytes": 1_000_000,
            }
        }
    )["metadata"]["uid"]  # fmt: skip
    api.add_record(replace(revision, run_uid=uid))
    api.add_record(replace(an_epoch(1), run_uid=uid, rung=revision.rungs[1]))
    result = call_cluster(api, "calibration", "export", "demo")
    assert result.exit_code == CliExit.OK, result.stderr
    one = json.loads(result.stdout)["measurements"][0]
    assert (one["nodes"], one["steps"], one["stepSeconds"]) == (2, 90, 0.5)
    assert one["peakBytes"] == 1_000_000


def test_less_memory_than_predicted_makes_no_plan_that_does_not_fit(tmp_path: Path) -> None:
    data: dict[str, Any] = json.loads(exported(tmp_path).read_text())
    data["measurements"][0] |= {"peakBytes": 500_000_000, "predictedPeakBytes": 1_000_000_000, "steps": 1000}
    path = tmp_path / "less.json"
    path.write_text(json.dumps(data))
    document = yaml.safe_load(EXAMPLE.read_text().replace("5e-3", "0.005"))
    document["spec"]["resources"]["perNode"]["memory"] = "1300Mi"
    manifest = tmp_path / "run.yaml"
    manifest.write_text(yaml.safe_dump(document))
    plain = json.loads(call("plan", "-f", manifest, "-o", "json").stdout)
    result = json.loads(call("plan", "-f", manifest, "--calibration", path, "-o", "json").stdout)
    assert 0.85 <= result["machine"]["measuredFactors"]["memory"] < 1.0
    for before, after in zip(plain["rungs"], result["rungs"], strict=True):
        assert after["microBatch"] == before["microBatch"]
        assert after["memory"]["total"] <= before["memory"]["total"] <= after["availableBytes"]
