"""What `trainingrun local` checks before it starts anything, and what --fresh may remove."""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from trainingrun.api.errors import InvalidManifest, Missing, UserError
from trainingrun.cli import local_preflight as preflight
from trainingrun.cli.main import app
from trainingrun.cluster.local import files
from trainingrun.cluster.local.layout import Layout
from trainingrun.cluster.local.store import Store
from trainingrun.planner.errors import PlanError

EXAMPLE = Path(__file__).resolve().parents[1] / "golden" / "run.yaml"
NAME = "pretrain-stdlib"


class Desk:
    """A folder to work in, with a manifest that a test may change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(folder / ".trainingrun")
        self.manifest: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
        self.location = folder / ".trainingrun" / "checkpoints" / NAME
        self.output = folder / ".trainingrun" / "models" / NAME

    @property
    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.manifest["spec"]
        return spec

    def write(self) -> Path:
        path = self.folder / "run.yaml"
        path.write_text(yaml.safe_dump(self.manifest))
        return path

    def request(self, nodes: int | None = None) -> preflight.Request:
        return preflight.read_request(self.write(), self.folder, nodes)

    def stored(self, **status: Any) -> Any:
        """The run as a session applied it, with this status."""
        run = self.store.apply(self.request().manifest, 1.0)
        self.store.write_status(NAME, status, run.resource_version)
        return self.store.run(NAME)

    def trained_by(self, uid: str, run: str = NAME) -> None:
        self.location.mkdir(parents=True)
        (self.location / "owner.json").write_text(json.dumps({"runUid": uid, "runName": run}))
        (self.location / "step-00000010.e0001").mkdir()
        self.output.mkdir(parents=True)
        (self.output / "source.json").write_text(json.dumps({"runUid": uid}))


def over(kind: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": "True", "reason": kind, "message": ""}]}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.chdir(tmp_path)
    return Desk(tmp_path)


def test_a_request_is_resolved_with_absolute_paths_from_the_current_directory(desk: Desk) -> None:
    request = desk.request()
    assert (request.name, request.nodes) == (NAME, 2)
    assert request.location == desk.location
    assert request.output == desk.output
    assert request.manifest["spec"]["checkpoint"]["location"]["uri"] == f"file://{desk.location}"
    assert request.manifest["spec"]["data"]["sources"][0]["uri"] == "python-stdlib:train"


def test_fewer_nodes_than_the_least_are_refused(desk: Desk) -> None:
    desk.spec["scale"] = {"minNodes": 2, "maxNodes": 2}
    with pytest.raises(InvalidManifest, match=r"--nodes: 1, but spec.scale.minNodes is 2"):
        desk.request(nodes=1)


def test_a_file_that_is_not_there_is_refused(desk: Desk) -> None:
    with pytest.raises(Missing, match=r"nope.yaml: there is no such file"):
        preflight.read_request(desk.folder / "nope.yaml", desk.folder, None)
    desk.spec["data"]["sources"][0]["uri"] = "file://nowhere"
    with pytest.raises(Missing, match=r"spec.data.sources\[0\].uri"):
        desk.request()


def test_an_accelerator_that_this_machine_does_not_have_is_refused_and_never_replaced(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "accelerators_here", lambda resource: 0)
    desk.spec["resources"] = {"perNode": {"nvidia.com/gpu": 1, "cpu": 4, "memory": "16Gi"}}
    with pytest.raises(InvalidManifest) as caught:
        desk.request()
    first, second = str(caught.value).splitlines()
    assert first == ("spec.resources.perNode: nvidia.com/gpu 1 on each of 2 nodes, but this machine has none")
    assert "hint: remove it" in second


def test_too_few_accelerators_name_the_number_of_nodes_that_fits() -> None:
    with pytest.raises(InvalidManifest, match=r"has 3 in all\n  hint: use --nodes 1"):
        preflight.check_accelerators({"nvidia.com/gpu": "2"}, 2, present=lambda resource: 3)
    preflight.check_accelerators({"nvidia.com/gpu": "2"}, 2, present=lambda resource: 4)
    preflight.check_accelerators({"cpu": "2"}, 2, present=lambda resource: 0)


def test_a_model_that_fits_nowhere_is_refused_before_anything_starts(desk: Desk) -> None:
    desk.spec["resources"]["perNode"]["memory"] = "600Mi"
    with pytest.raises(PlanError) as caught:
        desk.request()
    assert caught.value.exit_code == 3


def test_an_unfinished_run_of_the_same_name_is_continued(desk: Desk) -> None:
    run = desk.stored()
    assert preflight.check_existing(desk.request(), run)
    assert not preflight.check_existing(desk.request(), None)


@pytest.mark.parametrize("kind", ["Complete", "Failed"])
def test_a_run_that_is_over_is_refused_with_a_hint(desk: Desk, kind: str) -> None:
    run = desk.stored(**over(kind))
    with pytest.raises(preflight.Refused, match=rf"is {kind.lower()} already\n  hint: --fresh"):
        preflight.check_existing(desk.request(), run)


def test_an_unfinished_run_is_not_continued_with_other_mathematics(desk: Desk) -> None:
    run = desk.stored()
    desk.spec["training"]["seed"] = 18
    with pytest.raises(preflight.Refused, match=r"spec.training differs"):
        preflight.check_existing(desk.request(), run)


def test_an_unfinished_run_is_continued_with_other_limits_and_sizes(desk: Desk) -> None:
    run = desk.stored()
    desk.spec["recovery"] = {"noProgressLimit": 9}
    desk.spec["scale"]["maxNodes"] = 3
    assert preflight.check_existing(desk.request(), run)


def test_a_checkpoint_location_of_another_run_is_refused(desk: Desk) -> None:
    desk.trained_by("another uid", run="other")
    with pytest.raises(InvalidManifest) as caught:
        preflight.check_places(desk.request(), "")
    text = str(caught.value)
    assert text.startswith(f"spec.checkpoint.location.uri: file://{desk.location} holds the checkpoints")
    assert "run other (uid another uid)" in text
    assert "hint: choose another location" in text


@pytest.mark.parametrize("field", ["spec.checkpoint.location.uri", "spec.output.uri"])
def test_a_place_below_a_file_is_refused(desk: Desk, field: str) -> None:
    (desk.folder / "notes.txt").write_text("…")
    holder = desk.spec["output"] if "output" in field else desk.spec["checkpoint"]["location"]
    holder["uri"] = "file://notes.txt/deeper/place"
    with pytest.raises(InvalidManifest) as caught:
        preflight.check_places(desk.request(), "")
    uri = f"file://{desk.folder}/notes.txt/deeper/place"
    problem = f"{field}: {uri}: {desk.folder}/notes.txt is a file, not a folder"
    assert str(caught.value) == f"{problem}\n  hint: {preflight.WRITABLE}"


def test_a_place_that_may_not_be_written_to_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != desk.folder)  # root may write everywhere
    with pytest.raises(InvalidManifest) as caught:
        preflight.check_places(desk.request(), "")
    paths = [error.path for error in caught.value.errors]
    assert paths == ["spec.checkpoint.location.uri", "spec.output.uri"]
    assert f"{desk.folder} may not be written to" in str(caught.value)


def test_what_is_refused_leaves_no_state_folder(desk: Desk) -> None:
    (desk.folder / "notes.txt").write_text("…")
    desk.spec["checkpoint"]["location"]["uri"] = "file://notes.txt"
    desk.write()
    command = ["local", "run", "run.yaml", "--trainer-python", sys.executable]
    assert CliRunner().invoke(app, command).exit_code == 2
    assert sorted(path.name for path in desk.folder.iterdir()) == ["notes.txt", "run.yaml"]


def test_a_checkpoint_location_of_ones_own_is_fine_until_another_run_has_taken_it_over(desk: Desk) -> None:
    desk.trained_by("mine")
    preflight.check_places(desk.request(), "mine")
    (desk.location / "owner.0002.json").write_text(json.dumps({"runUid": "newer", "runName": "b"}))
    with pytest.raises(InvalidManifest):
        preflight.check_places(desk.request(), "mine")
    preflight.check_places(desk.request(), "newer")


def test_an_output_folder_with_something_else_in_it_is_refused(desk: Desk) -> None:
    desk.output.mkdir(parents=True)
    preflight.check_places(desk.request(), "")  # an empty folder is fine
    (desk.output / "thesis.tex").write_text("…")
    with pytest.raises(InvalidManifest, match=r"spec.output.uri: .* is not a model that a run exported"):
        preflight.check_places(desk.request(), "")


def test_fresh_removes_the_state_the_checkpoints_and_the_model_of_this_very_run(desk: Desk) -> None:
    run = desk.stored()
    desk.trained_by(run.uid)
    removed = preflight.forget(desk.store, run)
    assert removed == [str(desk.location), str(desk.output), str(desk.store.layout.run(NAME))]
    assert not desk.location.exists()
    assert not desk.output.exists()
    assert desk.store.run_names() == []


def test_fresh_leaves_what_another_run_wrote(desk: Desk) -> None:
    run = desk.stored()
    desk.trained_by("another uid")
    assert preflight.forget(desk.store, run) == [str(desk.store.layout.run(NAME))]
    assert desk.location.exists()
    assert desk.output.exists()


def test_fresh_follows_the_run_that_is_there_and_not_the_new_manifest(desk: Desk) -> None:
    run = desk.stored()
    desk.trained_by(run.uid)
    desk.spec["checkpoint"]["location"]["uri"] = "file://elsewhere"
    assert str(desk.location) in preflight.forget(desk.store, run)


def _invoke(*arguments: str, **environment: str | None) -> Any:
    return CliRunner().invoke(
        app, ["local", *arguments], env={"TRAININGRUN_TRAINER_PYTHON": None, **environment}
    )


def test_without_a_trainers_python_the_command_says_how_to_get_one(desk: Desk) -> None:
    result = _invoke("run", str(desk.write()))
    assert result.exit_code == 2
    assert "--trainer-python: not given" in result.stderr
    assert "hint: make env prints it" in result.stderr
    assert not desk.store.layout.runs.exists()


def test_a_state_folder_that_is_in_use_is_refused(desk: Desk) -> None:
    desk.store.layout.root.mkdir(parents=True)
    lock = files.hold(Layout(desk.store.layout.root).lock)
    assert lock is not None
    result = _invoke("run", str(desk.write()), TRAININGRUN_TRAINER_PYTHON="/bin/true")
    os.close(lock)
    assert result.exit_code == 2
    assert "is in use by another `trainingrun local`" in result.stderr


def test_a_run_that_is_over_is_refused_by_the_command(desk: Desk) -> None:
    desk.stored(**over("Complete"))
    result = _invoke("run", str(desk.write()), TRAININGRUN_TRAINER_PYTHON="/bin/true")
    assert result.exit_code == 2
    assert "is complete already" in result.stderr


def test_status_lists_runs_and_one_as_json(desk: Desk) -> None:
    desk.stored(progress={"step": 3, "totalSteps": 300, "loss": "6.1"}, membership={"epoch": 2})
    result = _invoke("status")
    assert result.stdout.splitlines()[1].split() == [NAME, "Stopped", "3/300", "6.1", "2"]
    assert json.loads(_invoke("status", NAME, "-o", "json").stdout)["status"]["progress"]["step"] == 3
    missing = _invoke("status", "nobody")
    assert missing.exit_code == 5
    assert f"there are {NAME}" in missing.stderr


def test_clean_removes_runs_and_what_they_wrote(desk: Desk) -> None:
    run = desk.stored(**over("Complete"))
    desk.trained_by(run.uid)
    vague = _invoke("clean")
    assert vague.exit_code == 2
    assert f"hint: name one of {NAME}, or use --all" in vague.stderr
    assert desk.store.run_names() == [NAME]
    result = _invoke("clean", NAME)
    assert result.exit_code == 0
    assert f"removed {desk.location}" in result.stderr
    assert desk.store.run_names() == []


def test_every_refusal_is_a_user_error_with_a_hint(desk: Desk) -> None:
    broken = copy.deepcopy(desk.manifest)
    desk.spec["nonsense"] = 1
    with pytest.raises(UserError, match="hint:"):
        desk.request()
    desk.manifest = broken
    desk.request()


def test_what_acts_only_on_a_cluster_is_refused_with_its_field(desk: Desk) -> None:
    desk.spec["data"]["sources"][0]["uri"] = "pvc://corpus/text"
    desk.spec["output"]["uri"] = "pvc://models/x"
    desk.spec["podTemplate"] = {"metadata": {"labels": {"team": "a"}}}
    with pytest.raises(InvalidManifest) as caught:
        desk.request()
    assert [error.path for error in caught.value.errors] == [
        "spec.data.sources[0].uri",
        "spec.output.uri",
        "spec.podTemplate",
    ]
    first, second, third = caught.value.errors
    assert str(first) == (
        "spec.data.sources[0].uri: claim corpus: this machine has no volume claims\n"
        "  hint: use a file:// folder"
    )
    assert "claim models" in second.message
    assert "there are no pods in a local run" in third.message
