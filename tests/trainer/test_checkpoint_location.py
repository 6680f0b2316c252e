from __future__ import annotations

import errno
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.trainer import cuts

from trainer.agent.parts import real_parts
from trainer.checkpoint.durable import Fenced, SaveFailed, save, write_fence
from trainer.checkpoint.location import newest_fence, owners
from trainer.checkpoint.manifest import (
    LocationTaken,
    claim,
    damaged_manifests,
    list_checkpoints,
    location_fresh,
)
from trainer.checkpoint.store import PathStore, open_place, store_of
from trainer.errors import ConfigError
from trainingrun.api.constants import Reason
from trainingrun.protocol import names

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def saved(location: Path, step: int, epoch: int, uid: str) -> str:
    return save(
        location,
        step=step,
        epoch=epoch,
        tensors={},
        scalars={},
        parent="",
        run_uid=uid,
        keep_last=None,
        plan={},
        versions={},
    )


def test_a_location_is_claimed_once_and_stays_the_runs(tmp_path: Path) -> None:
    location = tmp_path / "new" / "c"
    claim(location, "u1", "first", adopt=False)
    claim(location, "u1", "first", adopt=False)
    assert (location / "owner.json").read_text() == '{"runUid": "u1", "runName": "first"}'


def test_another_runs_location_is_refused_with_field_owner_and_fix(tmp_path: Path) -> None:
    claim(tmp_path, "u1", "first", adopt=False)
    with pytest.raises(LocationTaken) as raised:
        claim(tmp_path, "u2", "second", adopt=False)
    message = str(raised.value)
    assert message.startswith(f"spec.checkpoint.location.uri: '{tmp_path.as_uri()}'")
    assert "run first (u1)" in message and "Fix: use another location" in message
    assert raised.value.reason == Reason.LOCATION_IN_USE  # of the condition that the controller makes of it


def test_an_earlier_run_of_the_same_name_is_told_apart(tmp_path: Path) -> None:
    claim(tmp_path, "u1", "demo", adopt=False)
    with pytest.raises(LocationTaken) as raised:
        claim(tmp_path, "u2", "demo", adopt=False)
    message = str(raised.value)
    assert "an earlier run of this name, which was deleted (u1)" in message
    assert (
        "Fix: use another location for demo; or empty this folder, if nobody needs what is in it" in message
    )


def test_a_place_that_can_never_be_written_to_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (
        tmp_path / "file",
        tmp_path / "file" / "below",
        tmp_path / ("x" * 300),
        Path("/proc/none"),
    ):
        with pytest.raises(ConfigError) as raised:
            open_place("spec.output.uri", folder)
        assert str(raised.value).startswith(f"spec.output.uri: 'file://{folder}': not a folder that can be")
        assert "Fix: use one that every node may write to" in str(raised.value)


def test_a_place_that_is_away_may_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(Path, "mkdir", away)
    with pytest.raises(OSError, match="Stale file handle"):
        open_place("spec.output.uri", tmp_path)


def test_an_agent_tries_both_places_before_it_claims_one_of_them(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    spec = {
        "checkpoint": {"location": {"uri": f"file://{tmp_path}/new/c"}, "adopt": False},
        "output": {"uri": f"file://{tmp_path}/file/model"},
    }
    with pytest.raises(ConfigError, match=r"spec\.output\.uri"):
        real_parts().claim(spec, "u1", "first")
    assert list((tmp_path / "new" / "c").iterdir()) == []
    spec["output"]["uri"] = f"file://{tmp_path}/models/first"
    real_parts().claim(spec, "u1", "first")
    assert [path.name for path in (tmp_path / "new" / "c").iterdir()] == ["owner.json"]
    assert list((tmp_path / "models").iterdir()) == []


def test_of_many_that_claim_at_once_one_gets_it(tmp_path: Path) -> None:
    def attempt(number: int) -> bool:
        try:
            claim(tmp_path, f"u{number}", "run", adopt=False)
        except LocationTaken:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(8))) == 1


def test_an_adopting_run_continues_and_the_old_one_may_not_write(tmp_path: Path) -> None:
    claim(tmp_path, "u1", "first", adopt=False)
    saved(tmp_path, 100, 41, "u1")
    write_fence(tmp_path, 41)
    claim(tmp_path, "u2", "second", adopt=True)
    claim(tmp_path, "u2", "second", adopt=True)
    assert [owner.run_uid for owner in owners(tmp_path)] == ["u1", "u2"]
    with pytest.raises(LocationTaken):
        claim(tmp_path, "u1", "first", adopt=False)
    with pytest.raises(Fenced, match=r"now belongs to run second \(u2\)"):
        saved(tmp_path, 120, 42, "u1")
    # Epochs start again with the new run: neither the old fence nor the old epochs stand above it.
    saved(tmp_path, 110, 1, "u2")
    assert [checkpoint.name for checkpoint in list_checkpoints(tmp_path)][-1] == "step-00000110.e0001"


def test_checkpoints_without_an_owner_file_still_belong_to_their_run(tmp_path: Path) -> None:
    saved(tmp_path, 1, 1, "u1")
    with pytest.raises(LocationTaken, match="u1"):
        claim(tmp_path, "u2", "second", adopt=False)
    claim(tmp_path, "u1", "first", adopt=False)


def test_the_newest_fence_counts(tmp_path: Path) -> None:
    assert newest_fence(tmp_path, "u1") == 0
    for epoch in (3, 12, 7):
        write_fence(tmp_path, epoch)
    assert newest_fence(tmp_path, "u1") == 12


def test_create_only_never_replaces_and_leaves_no_rest(tmp_path: Path) -> None:
    assert PathStore(tmp_path).create("a", b"1")
    assert not PathStore(tmp_path).create("a", b"2")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"1")]


def test_file_uris_are_paths_and_others_are_refused() -> None:
    assert store_of("file:///data/my%20runs/a") == PathStore(Path("/data/my%20runs/a"))
    for uri in ("gs://bucket/a", "/data/a", "file://host/a", "file:///"):
        with pytest.raises(ConfigError, match=r"spec.checkpoint.location.uri.*use file:///PATH"):
            store_of(uri)


def test_a_bucket_is_a_place_too() -> None:
    store = store_of("s3://bucket/runs/a/")
    assert (store.uri, store.where("x")) == ("s3://bucket/runs/a", "s3://bucket/runs/a/x")
    for uri in ("s3://bucket", "s3://bucket/", "s3:///a", "s3://"):
        with pytest.raises(ConfigError, match=r"spec.checkpoint.location.uri.*use s3://BUCKET/PREFIX"):
            store_of(uri)


def test_agents_read_manifests_and_snapshots_without_torch() -> None:
    code = (
        "import sys, trainer.checkpoint.manifest, trainer.checkpoint.snapshot, trainer.data.prepare\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)}, timeout=60
    )


@pytest.mark.parametrize("make", ["file", "folder"])
def test_one_stray_entry_hides_no_checkpoint(tmp_path: Path, make: str) -> None:
    """A file that is named like a checkpoint, or a folder that is named like a manifest."""
    saved = a_saved_checkpoint(tmp_path)
    stray = tmp_path / "step-00009999.e0009"
    if make == "file":
        stray.write_text("hi")
    else:
        (stray / names.MANIFEST_FILE).mkdir(parents=True)
    assert [one.name for one in list_checkpoints(tmp_path)] == [saved]
    assert damaged_manifests(tmp_path) == ([] if make == "file" else [stray.name])
    assert not location_fresh(tmp_path)


@pytest.mark.parametrize("content", ["", '{"epoch": 1, "run', "[]", "{}"])
def test_a_damaged_fence_or_owner_is_a_failed_save_that_names_the_file(tmp_path: Path, content: str) -> None:
    a_saved_checkpoint(tmp_path)
    for name in (names.fence_name(1), names.OWNER_FILE):
        (tmp_path / name).write_text(content)
        with pytest.raises(SaveFailed, match=f"{tmp_path / name}: is damaged: put it back as it was"):
            cuts.save(tmp_path, cuts.state(0, cuts.Cut()), step=2)
        (tmp_path / name).unlink()
    cuts.save(tmp_path, cuts.state(0, cuts.Cut()), step=2)


def a_saved_checkpoint(location: Path) -> str:
    return cuts.save(location, cuts.state(0, cuts.Cut()), step=1)
