"""Reading a manifest, and resolving it to the spec that a revision freezes."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from tests.operator.api_builders import BASE, EXAMPLE, ROOT, manifest, only_error

from trainingrun.api.errors import CliExit, InvalidManifest, Missing, UnreadableManifest
from trainingrun.api.load import parse, read_manifest, require_files, resolve


def test_the_example_resolves_to_the_golden_spec() -> None:
    golden = json.loads((ROOT / "tests/golden/resolved-spec.json").read_text())
    resolved = resolve(parse(read_manifest(EXAMPLE), BASE), BASE)
    places = {
        "file:///base/.trainingrun/checkpoints/pretrain-stdlib": "file:///abs/checkpoints/pretrain-stdlib",
        "file:///base/.trainingrun/models/pretrain-stdlib": "file:///abs/models/pretrain-stdlib",
    }
    for holder in (resolved["checkpoint"]["location"], resolved["output"]):
        holder["uri"] = places[holder["uri"]]
    assert resolved == golden


def test_a_resolved_spec_resolves_to_itself() -> None:
    once = resolve(parse(manifest(), BASE), BASE)
    again = resolve(parse({**manifest(), "spec": copy.deepcopy(once)}, None), None)
    assert again == once


def test_a_resolved_spec_is_json_data() -> None:
    resolved = resolve(parse(manifest(), BASE), BASE)
    assert json.loads(json.dumps(resolved)) == resolved


def test_relative_paths_start_at_the_given_folder_and_are_normalised() -> None:
    run = parse(
        manifest(
            ("spec/data/sources/0/uri", "file://text/../corpus"),
            ("spec/model/tokenizer", {"uri": "file://./tokenizer/"}),
        ),
        BASE,
    )
    resolved = resolve(run, Path("/elsewhere"))
    assert resolved["data"]["sources"][0]["uri"] == "file:///elsewhere/corpus"
    assert resolved["model"]["tokenizer"]["uri"] == "file:///elsewhere/tokenizer"


def test_without_a_folder_relative_paths_are_refused() -> None:
    error = only_error(("spec/output/uri", "file://models/x"), base_dir=None)
    assert error.path == "spec.output.uri"
    assert "file://models/x is a relative path" in error.message
    assert error.fix == "write file:/// and the path from the root"


def test_durable_checkpoints_have_an_interval_even_when_none_is_given() -> None:
    assert resolve(parse(manifest(), BASE), BASE)["checkpoint"]["durable"] == {
        "intervalSeconds": 300,
        "intervalSteps": None,
        "keepLast": 3,
    }
    in_steps = manifest(("spec/checkpoint/durable", {"intervalSteps": 50}))
    assert resolve(parse(in_steps, BASE), BASE)["checkpoint"]["durable"]["intervalSeconds"] is None


def test_there_is_one_process_for_each_accelerator() -> None:
    per_node = {"cpu": 1, "memory": "4Gi", "nvidia.com/gpu": 8}
    on_gpus = manifest(("spec/resources/perNode", per_node))
    resources = resolve(parse(on_gpus, BASE), BASE)["resources"]
    assert resources == {
        "perNode": {"cpu": "1", "memory": "4Gi", "nvidia.com/gpu": "8"},
        "processesPerNode": 8,
    }
    assert resolve(parse(manifest(), BASE), BASE)["resources"]["processesPerNode"] == 1


@pytest.mark.parametrize(
    ("given", "resolved"), [(1, "1"), (1.5, "1.5"), ("500m", "500m"), (0.25, "0.25"), ("2", "2")]
)
def test_a_quantity_may_be_written_as_a_number(given: object, resolved: str) -> None:
    run = parse(manifest(("spec/resources/perNode/cpu", given)), BASE)
    assert resolve(run, BASE)["resources"]["perNode"]["cpu"] == resolved


def test_a_number_may_be_written_as_text_because_yaml_reads_3e_4_so(tmp_path: Path) -> None:
    text = (
        EXAMPLE.read_text()
        .replace("learningRate: 5e-3", "learningRate: 3e-4")
        .replace("steps: 300", "steps: 1e3")
    )
    path = tmp_path / "run.yaml"
    path.write_text(text)
    raw = read_manifest(path)
    assert raw["spec"]["training"]["optimizer"]["learningRate"] == "3e-4"
    training = resolve(parse(raw, BASE), BASE)["training"]
    assert training["optimizer"]["learningRate"] == 3e-4
    assert training["duration"]["steps"] == 1000


def test_tokens_are_rounded_up_to_whole_steps() -> None:
    run = parse(
        manifest(
            ("spec/training/duration", {"tokens": 10_001}), ("spec/training/globalBatch", {"tokens": 1280})
        ),
        BASE,
    )
    assert run.spec.training.batch_sequences == 10
    assert run.spec.training.total_steps == 8  # 7.8 steps of 1280 tokens


def test_what_the_api_server_adds_to_an_object_is_no_error() -> None:
    stored = manifest(
        ("metadata", {"name": "small", "uid": "1", "resourceVersion": "7", "managedFields": [{}]}),
        ("status", {"observedGeneration": 1}),
    )
    assert parse(stored, BASE).metadata.name == "small"


def test_a_file_that_is_not_there_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="there is no such file") as caught:
        read_manifest(tmp_path / "run.yaml")
    assert caught.value.exit_code == CliExit.MISSING
    assert str(tmp_path / "run.yaml") in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "run.yaml: is empty"),
        (b"# only a comment\n", "run.yaml: is empty"),
        (b"a: 1\n---\nb: 2\n", "has 2 documents, one is expected"),
        (b"- a\n- b\n", "expected a mapping, got a list with 2 items"),
        (b"just text\n", "expected a mapping, got the string 'just text'"),
        (b"spec:\n  task: a\n   model: b\n", r"run.yaml:3:9: is not YAML"),
        (b"spec:\n\ttask: a\n", r"run.yaml:2:1: is not YAML"),
        (b"spec: {task: a, task: b}\n", r"run.yaml:1:17: is not YAML: task is given twice"),
        (b"? [1, 2]\n: x\n", "a key must be a plain word"),
        (b"at: 2026-13-77\n", "is not YAML"),
        (b"name: \xff\xfe\n", "is not UTF-8 text"),
        (b"# " + b"x" * 2**20, "at most 1048576 are read"),
    ],
)
def test_a_file_that_is_no_manifest_is_refused_with_place_and_hint(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    with pytest.raises(UnreadableManifest, match=message) as caught:
        read_manifest(path)
    assert caught.value.exit_code == CliExit.BAD_INPUT
    assert "\n  hint: " in str(caught.value)


def test_a_folder_is_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(UnreadableManifest, match="is a folder"):
        read_manifest(tmp_path)


def test_yaml_that_loops_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("apiVersion: trainingrun.dev/v1alpha1\nkind: TrainingRun\nspec: &a {again: *a}\n")
    with pytest.raises(InvalidManifest, match="more than 32 levels deep"):
        parse(read_manifest(path), BASE)


def test_a_name_of_a_field_that_is_no_text_is_refused() -> None:
    broken = manifest()
    broken["spec"][True] = "on"
    with pytest.raises(InvalidManifest, match="spec: the boolean true is used as the name of a field"):
        parse(broken, BASE)


def test_data_that_is_not_there_is_named_with_its_field(tmp_path: Path) -> None:
    (tmp_path / "there.txt").write_text("text")
    spec = resolve(parse(manifest(("spec/data/sources/0/uri", "file://there.txt")), tmp_path), tmp_path)
    require_files(spec)  # checkpoint and output folders need not be there
    spec = resolve(parse(manifest(("spec/data/sources/0/uri", "file://not-there")), tmp_path), tmp_path)
    with pytest.raises(
        Missing, match=r"spec\.data\.sources\[0\]\.uri: file://.*/not-there: there is no such"
    ):
        require_files(spec)


def test_all_errors_are_reported_at_once_with_the_name_of_the_file() -> None:
    broken = manifest(
        ("spec/scale/minNodes", 3), ("spec/training/globalBatch", {"tokens": 1000}), ("spec/nonsense", 1)
    )
    with pytest.raises(InvalidManifest) as caught:
        parse(broken, BASE, source="run.yaml")
    assert {error.path for error in caught.value.errors} == {
        "spec.scale.minNodes",
        "spec.training.globalBatch.tokens",
        "spec.nonsense",
    }
    assert str(caught.value).startswith("run.yaml: 3 errors\nspec.training.globalBatch.tokens: 1000 is not")
    assert caught.value.exit_code == CliExit.BAD_INPUT


def test_one_error_reads_as_place_value_and_hint() -> None:
    with pytest.raises(InvalidManifest) as caught:
        parse(manifest(("spec/scale/minNodes", 3)), BASE)
    assert str(caught.value) == (
        "spec.scale.minNodes: 3 is more than spec.scale.maxNodes (2)\n"
        "  hint: lower minNodes to 2 or raise maxNodes to 3"
    )
