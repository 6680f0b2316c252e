"""Where a URI is on this machine, and under what name people know a path."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.agent.parts import real_parts
from trainer.checkpoint.location import path_of
from trainer.checkpoint.store import open_place, store_of
from trainer.data.errors import DataError
from trainer.data.sources import Source, file_path
from trainer.errors import ConfigError
from trainer.uris import NotAPath, local_path, uri_of
from trainingrun.api.uris import absolute
from trainingrun.api.uris import file_path as file_path_of_a_manifest
from trainingrun.protocol.names import ENV_CLAIMS_DIR

CLUSTER = {ENV_CLAIMS_DIR: "/mnt/claims"}


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///data/runs/a/", "/data/runs/a"),
        ("file:///data/my%20runs/a b#1?x", "/data/my%20runs/a b#1?x"),
        ("pvc://models/demo", "/mnt/claims/models/demo"),
        ("pvc://models/runs/demo/", "/mnt/claims/models/runs/demo"),
        ("pvc://my.claim/.hidden/a%20b", "/mnt/claims/my.claim/.hidden/a%20b"),
    ],
)
def test_a_uri_is_a_path(uri, path):
    assert local_path(uri, CLUSTER) == Path(path)


@pytest.mark.parametrize(
    "path", ["/data/a", "/data/my%20runs", "/data/a b", "/data/run#1", "/data/a?b", "/ä"]
)
def test_the_trainer_finds_a_file_where_the_manifest_was_checked(path):
    assert local_path(absolute(f"file://{path}", None), {}) == Path(file_path_of_a_manifest(f"file://{path}"))


@pytest.mark.parametrize(
    ("uri", "problem"),
    [
        ("pvc://models", "names no path in a volume claim"),
        ("pvc://models/", "names no path in a volume claim"),
        ("pvc:///demo", "names no path in a volume claim"),
        ("pvc://models//etc", "names no path in a volume claim"),
        ("pvc://models/.", "names no path in a volume claim"),
        ("pvc://models/../other", "leads out of the volume claim"),
        ("pvc://models/a/../../b", "leads out of the volume claim"),
        ("pvc://../models/a", "leads out of the volume claim"),
        ("pvc://./models/a", "leads out of the volume claim"),
        ("s3://bucket/a", "not a place that can be used here"),
        ("/data/a", "not a place that can be used here"),
        ("file://localhost/a", "not a place that can be used here"),
        ("file:/a", "not a place that can be used here"),
        ("file:///", "not a place that can be used here"),
    ],
)
def test_what_is_no_path_here_is_refused(uri, problem):
    with pytest.raises(NotAPath, match=problem):
        local_path(uri, CLUSTER)


def test_there_are_no_claims_where_no_folder_of_claims_is_named():
    with pytest.raises(NotAPath, match=f"no volume claims here .{ENV_CLAIMS_DIR} is not set"):
        local_path("pvc://models/demo", {})


def test_a_path_in_a_claim_is_shown_as_its_uri():
    assert uri_of(Path("/mnt/claims/models/demo"), CLUSTER) == "pvc://models/demo"
    assert uri_of(Path("/data/demo"), CLUSTER) == "file:///data/demo"
    assert uri_of(Path("/mnt/claims/models/demo"), {}) == "file:///mnt/claims/models/demo"


def test_every_reader_of_the_specification_names_its_field(monkeypatch):
    monkeypatch.delenv(ENV_CLAIMS_DIR, raising=False)
    with pytest.raises(ConfigError, match=r"^spec\.checkpoint\.location\.uri: 'pvc://a/b': there are no"):
        store_of("pvc://a/b")
    with pytest.raises(ConfigError, match=r"^spec\.output\.uri: 'pvc://a/b': there are no"):
        path_of("pvc://a/b", "spec.output.uri")
    with pytest.raises(DataError, match=r"^spec\.data\.sources\[0\]\.uri: 'pvc://a/b': there are no"):
        file_path("pvc://a/b", "spec.data.sources[0].uri")


def test_a_run_claims_its_places_and_reads_its_data_in_volume_claims(tmp_path, monkeypatch):
    monkeypatch.setenv(ENV_CLAIMS_DIR, str(tmp_path))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("hello")
    assert [document.text for document in Source("f", "pvc://data/a.txt").documents()] == ["hello"]
    spec = {
        "checkpoint": {"location": {"uri": "pvc://models/run/checkpoints"}, "adopt": False},
        "output": {"uri": "pvc://models/run/model"},
    }
    real_parts().claim(spec, "uid", "run")
    assert real_parts().look(spec).fresh
    assert (tmp_path / "models" / "run" / "checkpoints" / "owner.json").exists()
    (tmp_path / "models" / "file").touch()
    with pytest.raises(ConfigError, match="'pvc://models/file/x': not a folder that can be written to"):
        open_place("spec.output.uri", path_of("pvc://models/file/x", "spec.output.uri"))
