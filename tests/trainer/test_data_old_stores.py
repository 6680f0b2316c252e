"""Stores of format 1, as well protected as new ones; and caches of versions before, which are not used."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from tests.trainer.texts import END, a_spec, a_store, quiet

from trainer.data.errors import StoreDamaged
from trainer.data.prepare import prepare
from trainer.data.store import TokenStore

OLD_BLOCK = 4 << 20


def write_as_format_1(folder: Path, store: TokenStore) -> None:
    """The bytes that version 1 wrote for the same documents."""
    folder.mkdir(parents=True)
    files = {}
    for name, content in (
        ("tokens.bin", store.read(0, store.tokens).astype(store.index.dtype).tobytes()),
        ("documents.bin", store.starts.astype("<i8").tobytes()),
    ):
        (folder / name).write_bytes(content)
        blocks = [content[at : at + OLD_BLOCK] for at in range(0, len(content), OLD_BLOCK)]
        files[name] = {"bytes": len(content), "blocks": [hashlib.sha256(one).hexdigest() for one in blocks]}
    index = {
        "formatVersion": 1,
        "dtype": store.index.dtype,
        "tokens": store.tokens,
        "documents": store.documents,
        "endToken": store.end_token,
        "files": files,
    }
    (folder / "index.json").write_text(json.dumps(index))


def test_an_old_store_holds_the_same_tokens(tmp_path: Path) -> None:
    new = a_store(tmp_path / "new", [9, 4, 30], shard_tokens=10)
    write_as_format_1(tmp_path / "old", new)
    old = TokenStore.at(tmp_path / "old")
    old.verify()
    assert (old.tokens, old.documents, old.end_token) == (43, 3, END)
    assert old.read(0, 43).tolist() == new.read(0, 43).tolist()
    assert old.spans(2, 40) == new.spans(2, 40)


def test_an_old_store_that_was_damaged_is_found_too(tmp_path: Path) -> None:
    new = a_store(tmp_path / "new", [OLD_BLOCK // 4 + 9], vocabulary=3_000_000)
    write_as_format_1(tmp_path / "old", new)
    for name, place, offset in (("tokens.bin", OLD_BLOCK + 3, OLD_BLOCK), ("documents.bin", 9, 0)):
        data = bytearray((tmp_path / "old" / name).read_bytes())
        data[place] ^= 1
        (tmp_path / "old" / name).write_bytes(data)
        with pytest.raises(StoreDamaged) as raised:
            TokenStore.at(tmp_path / "old").verify()
        assert (Path(str(raised.value.file)).name, raised.value.offset) == (name, offset)
        data[place] ^= 1
        (tmp_path / "old" / name).write_bytes(data)


def test_a_cache_in_which_special_tokens_were_found_in_texts_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the same words again and again\n" * 20)
    spec = a_spec((tmp_path / "a.txt").as_uri())
    digest = hashlib.sha256()
    text = (tmp_path / "a.txt").read_bytes()
    digest.update(len(text).to_bytes(8, "little") + text)
    # As version 1 named it.
    identity = ["format:1", "byte-level-bpe:300:16000000", f"train:{digest.hexdigest()}"]
    old = hashlib.sha256("\n".join(identity).encode()).hexdigest()
    write_as_format_1(tmp_path / "cache" / "data" / old[:32] / "train", a_store(tmp_path / "any", [9, 9]))
    said: list[str] = []
    made = prepare(spec, tmp_path / "cache", said.append)
    assert made.fingerprint != old
    assert any("tokenising" in text for text in said)
    assert made.train.documents == 1


def test_runs_that_tokenise_nothing_keep_the_fingerprint_of_their_data(tmp_path: Path) -> None:
    tokenizer = prepare_tokenizer(tmp_path)
    store = a_store(tmp_path / "s", [9, 4], vocabulary=200)
    spec = a_spec(store.folder.as_uri(), tokenizer=tokenizer.as_uri())
    spec["data"]["sources"][0]["format"] = "Tokens"
    files = ":".join(
        f"{name}={hashlib.sha256((tokenizer / name).read_bytes()).hexdigest()}"
        for name in ("tokenizer.json", "tokenizer_config.json")
    )
    made = hashlib.sha256(f"format:1\nfiles:{files}".encode()).hexdigest()
    wanted = hashlib.sha256(f"{made}\nspec.data.sources[0].uri:{store.identity}".encode()).hexdigest()
    old = tmp_path / "cache" / "data" / made[:32]
    old.mkdir(parents=True)
    (old / "prepared.json").write_text('{"vocabularySize": 300}')  # without hashes, so it is made anew
    assert prepare(spec, tmp_path / "cache", quiet).fingerprint == wanted


def prepare_tokenizer(folder: Path) -> Path:
    (folder / "words.txt").write_text("some words\n" * 9)
    return prepare(a_spec((folder / "words.txt").as_uri()), folder / "other", quiet).tokenizer_dir
