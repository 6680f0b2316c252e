"""Checkpoints in a bucket of a real S3 server, and what happens when it is slow, refuses or loses things."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer import cuts, s3_world
from tests.trainer.cuts import Cut
from tests.trainer.epochs import Folder, a_spec
from tests.trainer.s3_world import BUCKET, Faults
from tests.trainer.worlds import run_world, warm_context

from trainer.agent.parts import real_parts
from trainer.checkpoint import s3_store
from trainer.checkpoint.durable import Fenced, SaveFailed, write_fence
from trainer.checkpoint.manifest import (
    LocationTaken,
    claim,
    damaged_manifests,
    list_checkpoints,
    location_fresh,
    newest,
)
from trainer.checkpoint.restore import CheckpointDamaged, NotRead, from_durable
from trainer.checkpoint.store import Store, store_of
from trainer.errors import ConfigError
from trainingrun.protocol.exit_codes import ExitCode
from trainingrun.protocol.records import Restore, RestoreSource

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_world.s3_server(tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def location(
    server: str, faults: Faults, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    """An empty place in the bucket, reached through the proxy."""
    with s3_world.fault_proxy(server, faults) as url:
        s3_world.use(url, monkeypatch)
        yield store_of(f"s3://{BUCKET}/{request.node.name.replace('[', '-').rstrip(']')}")
    s3_store._file_system.cache_clear()
    store_of.cache_clear()


def s3_variables() -> dict[str, str]:
    """For processes that do not inherit them."""
    return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}


def saved(location: Store, *steps: int, **options: Any) -> dict[str, torch.Tensor]:
    tensors = cuts.state(0, Cut())
    for step in steps:
        cuts.save(location, tensors, step=step, **options)
    return tensors


def assert_holds(location: Store, name: str, step: int) -> None:
    tensors = cuts.state(0, Cut())
    assert from_durable(location, name, tensors) == cuts.scalars(step)
    assert cuts.wrong(tensors, step) == []


def steps_at(location: Store) -> list[int]:
    return [checkpoint.step for checkpoint in list_checkpoints(location)]


# As in a folder ----------------------------------------------------------------


def test_a_checkpoint_is_saved_listed_kept_and_restored(location: Store) -> None:
    assert location_fresh(location)
    assert list_checkpoints(location) == []
    saved(location, 1, 2, 3, 4, keep_last=2)
    assert steps_at(location) == [3, 4]
    assert not location_fresh(location)
    assert_holds(location, "step-00000004.e0001", 4)
    assert location.names() == ["committed", "step-00000003.e0001", "step-00000004.e0001"]
    assert location.create("pins/step-00000003.e0001", b"")
    saved(location, 5, 6, keep_last=1)
    assert steps_at(location) == [3, 6]


def save_in_a_world(rank: int, uri: str, environment: dict[str, str]) -> str:
    os.environ.update(environment)  # the ranks' server may have been there before the S3 server
    return cuts.save(store_of(uri), cuts.state(rank, Cut(tensor=2, shard=2)), step=7)


def test_what_four_ranks_saved_one_restores(location: Store) -> None:
    name = run_world(save_in_a_world, 4, location.uri, s3_variables())[0]
    assert_holds(location, name, 7)


def test_of_many_that_create_an_object_at_once_one_does(location: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: location.create("owner.json", b"%d" % number), range(8)))
    assert sum(made) == 1
    assert location.read("owner.json") == b"%d" % made.index(True)


def test_a_fence_and_an_owner_bind_writers(location: Store) -> None:
    claim(location, cuts.UID, "first", adopt=False)
    saved(location, 1, epoch=4)
    write_fence(location, 6)
    with pytest.raises(Fenced, match="epoch 5 is below the fence of epoch 6"):
        saved(location, 2, epoch=5)
    with pytest.raises(LocationTaken, match=r"s3://runs/"):
        claim(location, "another", "second", adopt=False)
    assert steps_at(location) == [1]


def test_a_flipped_bit_in_an_object_is_found(location: Store, server: str) -> None:
    saved(location, 1, 2)
    name = "step-00000002.e0001/__0_0.distcp"
    data = bytearray(location.read(name))
    data[len(data) // 2] ^= 1
    location.remove(name)
    assert location.create(name, bytes(data))
    with pytest.raises(CheckpointDamaged, match="sha256 does not match"):
        from_durable(location, "step-00000002.e0001", cuts.state(0, Cut()))
    location.remove(name)
    with pytest.raises(CheckpointDamaged, match=r"0 bytes, but"):
        from_durable(location, "step-00000002.e0001", cuts.state(0, Cut()))
    assert damaged_manifests(location) == []
    assert_holds(location, "step-00000001.e0001", 1)


def test_an_agent_finds_its_bucket_or_says_what_is_wrong_with_it(
    location: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {
        "checkpoint": {"location": {"uri": location.uri}, "adopt": False},
        "output": {"uri": f"file://{tmp_path}/model"},
    }
    real_parts().claim(spec, "u1", "first")
    assert location.names() == ["owner.json"]
    assert real_parts().look(spec).fresh
    spec["checkpoint"]["location"] = {"uri": "s3://nobody-has-it/a"}
    with pytest.raises(
        ConfigError, match=r"spec.checkpoint.location.uri: 's3://nobody-has-it/a': .*NoSuchBucket"
    ):
        real_parts().claim(spec, "u1", "first")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    s3_store._file_system.cache_clear()
    with pytest.raises(ConfigError, match=r"spec.checkpoint.location.uri: .*SignatureDoesNotMatch"):
        real_parts().claim(
            {**spec, "checkpoint": {"location": {"uri": location.uri}, "adopt": False}}, "u1", "first"
        )


# Faults ----------------------------------------------------------------


def test_a_server_that_refuses_fails_the_save_and_the_next_one_succeeds(
    location: Store, faults: Faults
) -> None:
    saved(location, 1)
    faults.refuse = "^PUT .*distcp"
    with pytest.raises(SaveFailed, match=r"step-00000002.e0001 was not saved: .*SlowDown"):
        saved(location, 2)
    assert steps_at(location) == [1]
    faults.clear()
    saved(location, 2)
    assert steps_at(location) == [1, 2]
    assert_holds(location, "step-00000002.e0001", 2)


def test_a_server_that_refuses_for_a_moment_is_asked_again(location: Store, faults: Faults) -> None:
    faults.refuse = "^PUT .*manifest.json"
    with ThreadPoolExecutor(1) as pool:
        saving = pool.submit(saved, location, 1)
        while not any("manifest.json" in one for one in faults.seen if one.startswith("PUT")):
            assert not saving.done()
            time.sleep(0.01)
        faults.clear()
        saving.result(60)
    assert_holds(location, "step-00000001.e0001", 1)


def test_an_answer_that_is_lost_does_not_turn_a_commit_into_a_failure(
    location: Store, faults: Faults
) -> None:
    faults.cut = "^PUT .*manifest.json"
    saved(location, 1)
    assert sum("manifest.json" in one for one in faults.seen if one.startswith("PUT")) > 1
    assert_holds(location, "step-00000001.e0001", 1)


def test_an_object_that_the_server_loses_is_noticed_before_the_commit(
    location: Store, faults: Faults
) -> None:
    saved(location, 1)
    faults.lose = "^PUT .*distcp"
    with pytest.raises(SaveFailed):
        saved(location, 2)
    assert steps_at(location) == [1]


def test_a_part_that_the_server_loses_is_noticed_before_the_commit(
    location: Store, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_store, "PART_BYTES", 5 << 20)
    large = {"model.large": torch.arange(4 << 20, dtype=torch.float32)}
    options: dict[str, Any] = {
        "parent": "",
        "run_uid": cuts.UID,
        "keep_last": None,
        "plan": {},
        "versions": {},
    }

    def save(step: int) -> str:
        return cuts.durable.save(location, step=step, epoch=1, tensors=large, scalars={}, **options)

    whole = save(1)
    assert any("partNumber=2" in one for one in faults.seen)
    faults.lose = "^PUT .*partNumber=2"
    with pytest.raises(SaveFailed):
        save(2)
    assert steps_at(location) == [1]
    found = {"model.large": torch.zeros(4 << 20)}
    from_durable(location, whole, found)
    assert torch.equal(found["model.large"], large["model.large"])


def test_a_server_that_is_away_damages_nothing(location: Store, faults: Faults) -> None:
    saved(location, 1)
    faults.refuse = "."
    with pytest.raises(NotRead, match=r"could not be read from s3://runs/.*(SlowDown|503)") as raised:
        from_durable(location, "step-00000001.e0001", cuts.state(0, Cut()))
    assert raised.value.exit_code == ExitCode.NOT_FETCHED
    with pytest.raises(OSError, match=r"SlowDown|503"):
        location_fresh(location)
    faults.clear()
    assert_holds(location, "step-00000001.e0001", 1)


def bring(variables: dict[str, str]) -> None:
    os.environ.update(variables)


def save_until_killed(uri: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    s3_store.PART_BYTES = 5 << 20
    large = {"model.large": torch.zeros(4 << 20)}
    for step in range(2, 1000):
        cuts.durable.save(
            store_of(uri), step=step, epoch=1, tensors=large, scalars={}, parent="", run_uid=cuts.UID, keep_last=2,
            plan={}, versions={},
        )  # fmt: skip


def test_a_writer_that_is_killed_leaves_whole_checkpoints_and_no_open_upload(location: Store) -> None:
    saved(location, 1)
    for kill in range(3):
        arguments = (location.uri, s3_variables())
        process = warm_context().Process(target=save_until_killed, args=arguments, daemon=True)
        process.start()
        process.join(3.0 + kill)
        process.kill()
        process.join()
        assert newest(location) is not None
        assert damaged_manifests(location) == []
    step = max(steps_at(location)) + 1
    saved(location, step)
    assert location.names() == ["committed", *(f"step-{one:08d}.e0001" for one in steps_at(location))]
    prefix = location.uri.removeprefix(f"s3://{BUCKET}/")
    uploads = s3_store._file_system().call_s3("list_multipart_uploads", Bucket=BUCKET, Prefix=prefix)
    assert uploads.get("Uploads", []) == []


# A run ----------------------------------------------------------------


def test_a_run_keeps_its_state_in_a_bucket_and_goes_on_from_it_at_another_size(
    location: Store, faults: Faults, tmp_path: Path
) -> None:
    spec = a_spec(tmp_path, steps=8)
    spec["checkpoint"]["location"] = {"uri": location.uri}
    spec["checkpoint"]["memory"] = {"intervalSteps": 0}
    spec["checkpoint"]["durable"]["intervalSteps"] = 2
    run = Folder(tmp_path, spec)
    faults.slow_seconds = 0.05
    reach = functools.partial(bring, s3_variables())
    first = run.run(1, tensor=2, pause_after=5, first=reach)
    assert not first.errors, first.errors
    assert steps_at(location)[-1] == 5
    faults.slow_seconds = 0.0
    restore = Restore(RestoreSource.DURABLE, 5, 1, "step-00000005.e0001")
    second = run.run(2, shard=2, restore=restore, first=reach)
    assert not second.errors, second.errors
    assert second.results[0] is not None
    assert (second.results[0].outcome, second.results[0].step) == ("Done", 8)
    assert (tmp_path / "model" / "model.safetensors").exists()
