"""Sources at http:// and s3://: each byte is fetched once, when it is needed, and never trained on when it is wrong."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.trainer import s3_world
from tests.trainer.texts import a_spec, a_store, quiet
from tests.trainer.web_world import Web, served

from trainer.config.data import DataConfig, MixtureStage
from trainer.data import remote as remote_module
from trainer.data import write
from trainer.data.errors import DataError, SourceAway, StoreDamaged
from trainer.data.prepare import prepare, prepared, samples_of
from trainer.data.remote import Remote
from trainer.data.remote_store import FETCH_BLOCKS, copy_folder, fetch_skeleton, open_copy
from trainer.data.sources import Source
from trainer.data.store import TokenStore
from trainer.data.store_format import BLOCK_BYTES

TEXTS = [f"document {number}: " + "the quick brown fox " * (number % 7) for number in range(60)]
FETCH_BYTES = BLOCK_BYTES * FETCH_BLOCKS


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setattr(remote_module, "RETRY_SECONDS", (0.01, 0.01))
    monkeypatch.setattr(remote_module, "PATIENT_RETRY_SECONDS", (0.01,) * 9)
    (tmp_path / "served").mkdir()
    with served(tmp_path / "served") as web:
        yield web


def jsonl(path: Path, texts: list[str] = TEXTS) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def a_large_store(folder: Path) -> TokenStore:
    """Of three fetches and a bit, in one shard."""
    return a_store(folder, [1000] * (FETCH_BYTES * 3 // 4000 + 20), vocabulary=1 << 20)


def fetched(web: Web, name: str, cache: Path) -> TokenStore:
    remote = Remote("spec.data.sources[0].uri", f"{web.url}/{name}", cache)
    return open_copy(remote, cache, fetch_skeleton(remote, cache).identity)


def test_a_file_of_documents_is_fetched_once_for_all_passes(web: Web, tmp_path: Path) -> None:
    jsonl(web.folder / "a.jsonl")
    spec = a_spec(f"{web.url}/a.jsonl")
    said: list[str] = []
    first = prepare(spec, tmp_path / "cache", said.append)
    assert first.train.documents == len(TEXTS)
    assert any("tokenising" in text for text in said)
    assert web.gets("a.jsonl") == 1
    assert prepare(spec, tmp_path / "cache", quiet).fingerprint == first.fingerprint
    assert web.gets("a.jsonl") == 1
    jsonl(web.folder / "a.jsonl", TEXTS[:50])
    assert prepare(spec, tmp_path / "cache", quiet).train.documents == 50
    assert web.gets("a.jsonl") == 2


@pytest.mark.parametrize("damage", ["content", "hash", "no hash"])
def test_a_copy_of_a_file_that_has_changed_in_the_cache_is_fetched_again(
    damage: str, web: Web, tmp_path: Path
) -> None:
    jsonl(web.folder / "a.jsonl")
    spec = a_spec(f"{web.url}/a.jsonl")
    wanted = prepare(spec, tmp_path / "cache", quiet).fingerprint
    (copy,) = (tmp_path / "cache").rglob("*.jsonl")
    sha256 = copy.with_name(f"{copy.name}.sha256")
    if damage == "no hash":
        sha256.unlink()
    else:
        file = copy if damage == "content" else sha256
        file.write_bytes(file.read_bytes().replace(b"1", b"2", 1).replace(b"a", b"b", 1))
    assert prepare(spec, tmp_path / "cache", quiet).fingerprint == wanted
    assert web.gets("a.jsonl") == 2
    assert prepare(spec, tmp_path / "cache", quiet).fingerprint == wanted
    assert web.gets("a.jsonl") == 2


def test_a_remote_store_gives_the_tokens_of_the_store(web: Web, tmp_path: Path) -> None:
    local = a_store(
        web.folder / "s", [random.Random(1).randint(2, 90) for _ in range(300)], shard_tokens=2000
    )
    store = fetched(web, "s", tmp_path)
    assert (store.identity, store.tokens, store.documents) == (local.identity, local.tokens, local.documents)
    assert store.read(0, store.tokens).tolist() == local.read(0, local.tokens).tolist()
    assert store.spans(100, 9000) == local.spans(100, 9000)


def test_only_what_is_read_is_fetched_and_only_once(web: Web, tmp_path: Path) -> None:
    local = a_large_store(web.folder / "s")
    store = fetched(web, "s", tmp_path)
    assert web.sent(".tokens") == 0
    assert store.read(5, 2000).tolist() == local.read(5, 2000).tolist()
    assert web.sent(".tokens") == FETCH_BYTES
    store.read(7, 9000)
    assert web.sent(".tokens") == FETCH_BYTES
    again = fetched(web, "s", tmp_path)  # another process of the machine, or one after a restart
    again.read(100, 3000)
    assert web.sent(".tokens") == FETCH_BYTES
    again.read(local.tokens - 5, local.tokens)
    assert web.sent(".tokens") == (web.folder / "s" / "00000.tokens").stat().st_size - 2 * FETCH_BYTES


def test_a_server_that_gives_no_parts_is_asked_for_the_file_once(web: Web, tmp_path: Path) -> None:
    local = a_large_store(web.folder / "s")
    web.gives_parts = False
    store = fetched(web, "s", tmp_path)
    assert store.read(0, store.tokens).tolist() == local.read(0, local.tokens).tolist()
    assert web.gets(".tokens") == 1


def test_damage_at_the_source_names_the_file_and_the_offset(web: Web, tmp_path: Path) -> None:
    a_large_store(web.folder / "s")
    file = web.folder / "s" / "00000.tokens"
    data = bytearray(file.read_bytes())
    data[3 * BLOCK_BYTES + 17] ^= 1
    file.write_bytes(data)
    store = fetched(web, "s", tmp_path)
    store.read(0, 100)
    with pytest.raises(StoreDamaged, match=rf"{web.url}/s/00000.tokens: byte {3 * BLOCK_BYTES}: ") as raised:
        store.read(3 * BLOCK_BYTES // 4, 3 * BLOCK_BYTES // 4 + 1)
    assert raised.value.offset == 3 * BLOCK_BYTES


def test_damage_on_the_way_and_in_the_copy_is_mended(web: Web, tmp_path: Path) -> None:
    local = a_large_store(web.folder / "s")

    def once(path: str, number: int, content: bytes) -> bytes:
        return bytes([content[0] ^ 1]) + content[1:] if path.endswith(".tokens") and not number else content

    web.change = once
    store = fetched(web, "s", tmp_path)
    assert store.read(0, 9).tolist() == local.read(0, 9).tolist()
    assert web.gets(".tokens") == 2
    copy = copy_folder(tmp_path, store.identity) / "00000.tokens"
    content = bytearray(copy.read_bytes())
    content[40] ^= 1
    copy.write_bytes(content)
    assert fetched(web, "s", tmp_path).read(0, 99).tolist() == local.read(0, 99).tolist()
    assert web.gets(".tokens") == 3


@pytest.mark.parametrize("name", ["00000.documents", "00000.checksums"])
def test_what_belongs_to_the_tokens_is_compared_with_the_index(web: Web, tmp_path: Path, name: str) -> None:
    a_store(web.folder / "s", [9, 9])
    file = web.folder / "s" / name
    content = file.read_bytes()
    file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(StoreDamaged, match=f"/s/{name}: byte 0: its sha256 is not that of the index"):
        fetched(web, "s", tmp_path)
    file.write_bytes(content[:-1])
    with pytest.raises(StoreDamaged, match=f"/s/{name}: byte {len(content) - 1}: "):
        fetched(web, "s", tmp_path)


def test_a_store_that_was_cut_off_at_its_source_is_damaged(web: Web, tmp_path: Path) -> None:
    a_store(web.folder / "s", [9, 9])
    file = web.folder / "s" / "00000.tokens"
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(StoreDamaged, match=r"/s/00000.tokens: byte 20: 20 bytes there, 36 were written"):
        fetched(web, "s", tmp_path).read(0, 1)


def test_a_server_in_trouble_is_asked_again_and_then_named(web: Web, tmp_path: Path) -> None:
    local = a_store(web.folder / "s", [9, 9])
    web.failing = 2
    store = fetched(web, "s", tmp_path / "one")
    assert store.read(0, 18).tolist() == local.read(0, 18).tolist()
    web.failing = 1000
    with pytest.raises(SourceAway, match=rf"{web.url}/s: ") as raised:
        fetched(web, "s", tmp_path / "two")
    assert raised.value.exit_code != DataError.exit_code  # starting again may help


def test_an_outage_is_waited_for_while_training(web: Web, tmp_path: Path) -> None:
    local = a_store(web.folder / "s", [9, 9])
    remote = Remote("f", f"{web.url}/s", tmp_path, patient=True)
    store = open_copy(remote, tmp_path, fetch_skeleton(remote, tmp_path).identity)
    web.failing = 9
    assert store.read(0, 18).tolist() == local.read(0, 18).tolist()
    assert web.failing == 0


@pytest.mark.parametrize(
    ("path", "message"), [("gone.jsonl", "there is no "), ("secret.jsonl", "may not be read")]
)
def test_what_is_not_there_is_refused_at_once(web: Web, tmp_path: Path, path: str, message: str) -> None:
    web.forbidden = "secret.jsonl"
    jsonl(web.folder / "secret.jsonl")
    with pytest.raises(DataError, match=rf"spec.data.sources\[0\].uri: '{web.url}/{path}': {message}"):
        prepare(a_spec(f"{web.url}/{path}"), tmp_path / "cache", quiet)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_module.importlib.util, "find_spec", lambda name: None)
    for uri, package in (("s3://lake/a", "s3fs"), ("https://host/a.jsonl", "aiohttp")):
        message = (
            rf"sources\[0\].uri: '{uri}': \w+:// needs the Python package {package}, .* Fix: use an image"
        )
        with pytest.raises(DataError, match=message):
            prepare(a_spec(uri), tmp_path / "cache", quiet)


def test_a_run_trains_on_local_and_remote_stores_alike(web: Web, tmp_path: Path) -> None:
    jsonl(tmp_path / "a.jsonl")
    assert write.main([f"{tmp_path}/a.jsonl", "--output", f"{tmp_path}/s", "--train-tokenizer", "300"]) == 0
    shutil.copytree(tmp_path / "s", web.folder / "s")
    specs = []
    for uri in ((tmp_path / "s").as_uri(), f"{web.url}/s"):
        spec = a_spec(uri, uri, heldout=(uri,), tokenizer=(tmp_path / "s" / "tokenizer").as_uri())
        for number, source in enumerate((*spec["data"]["sources"], *spec["data"]["validation"])):
            source |= {"name": f"n{number}", "format": "Tokens"}
        specs.append(spec)
    config = DataConfig(3, "BestFit", ("n0", "n1"), (MixtureStage(0, (2, 1)),))
    logged = []
    for spec in specs:
        spec["data"]["packing"] = config.packing
        prepare(spec, tmp_path / "cache", quiet)
        data = prepared(spec, tmp_path / "cache")
        samples = samples_of(data, config, spec["training"]["sequenceLength"], tmp_path / "cache")
        logged.append([samples.logged(sample).tolist() for sample in samples.at(0, 40)])
    assert logged[0] == logged[1]


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a bucket that a real S3 server serves."""
    with s3_world.s3_server(tmp_path) as url:
        for name, value in s3_world.environment(url).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(remote_module, "RETRY_SECONDS", (0.01,))
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()
        yield tmp_path / "s3" / s3_world.BUCKET
        s3fs.S3FileSystem.clear_instance_cache()


def test_folders_and_stores_are_read_from_a_bucket(bucket: Path, tmp_path: Path) -> None:
    jsonl(bucket / "texts" / "b.jsonl", TEXTS[30:])
    jsonl(bucket / "texts" / "a.jsonl", TEXTS[:30])
    (bucket / "texts" / "image.png").write_bytes(b"\xff")
    uri = f"s3://{s3_world.BUCKET}"
    documents = list(Source("f", f"{uri}/texts", tmp_path / "cache").documents())
    assert [document.text for document in documents] == TEXTS
    assert [document.name for document in documents[29:31]] == ["a.jsonl:30", "b.jsonl:1"]
    first = next(Source("f", f"{uri}/texts", tmp_path / "empty").documents())
    assert first.text == TEXTS[0]
    assert len(list((tmp_path / "empty").rglob("*.jsonl"))) == 1  # b.jsonl can wait
    assert [one.text for one in Source("f", f"{uri}/texts/b.jsonl", tmp_path).documents()] == TEXTS[30:]
    local = a_store(bucket / "store", [50] * 90, shard_tokens=2000)
    remote = Remote("f", f"{uri}/store", tmp_path / "cache")
    store = open_copy(remote, tmp_path / "cache", fetch_skeleton(remote, tmp_path / "cache").identity)
    assert store.read(0, store.tokens).tolist() == local.read(0, local.tokens).tolist()
    for missing in ("nothing", "nothing/at/all.jsonl"):
        with pytest.raises(DataError, match=rf"f: '{uri}/{missing}': "):
            list(Source("f", f"{uri}/{missing}", tmp_path / "cache").documents())
