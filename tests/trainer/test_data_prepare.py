from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest
from tests.trainer.texts import a_spec, quiet
from transformers import AutoTokenizer

from trainer.data import text_cache
from trainer.data.errors import DataError
from trainer.data.prepare import prepare, prepared
from trainer.data.sources import Source
from trainer.data.stdlib import stdlib_documents

TEXTS = ["The quick brown fox.\n", "jumps över the lazy dog, 世界.\n", "def f(x):\n    return x\n"]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        (folder / f"{number}.txt").write_text(text * 5)
    (folder / "image.png").write_bytes(b"\xff\xfe")
    (folder / "empty.txt").touch()
    return folder


def test_a_folder_becomes_a_store_whose_tokens_decode_to_its_documents(corpus: Path, tmp_path: Path) -> None:
    data = prepare(a_spec(corpus.as_uri()), tmp_path / "cache", quiet)
    assert (data.train.documents, data.heldout, data.vocabulary_size) == (3, None, 300)
    tokenizer = AutoTokenizer.from_pretrained(data.tokenizer_dir, local_files_only=True)
    assert tokenizer.eos_token_id == data.train.end_token
    starts = data.train.starts.tolist()
    for number, (start, end) in enumerate(pairwise(starts)):
        ids = data.train.read(start, end).tolist()
        assert ids[-1] == data.train.end_token
        assert tokenizer.decode(ids[:-1]) == TEXTS[number] * 5
        assert tokenizer(TEXTS[number] * 5, add_special_tokens=False)["input_ids"] == ids[:-1]


def test_the_same_content_is_prepared_once_and_gives_the_same_tokenizer(corpus: Path, tmp_path: Path) -> None:
    spec = a_spec(corpus.as_uri(), heldout=(corpus.joinpath("1.txt").as_uri(),))
    said: list[str] = []
    first = prepare(spec, tmp_path / "cache", said.append)
    made = said.copy()
    said.clear()
    again = prepare(spec, tmp_path / "cache", said.append)
    assert any("tokenising" in text for text in made)
    assert not any("tokenising" in text for text in said)
    assert again.fingerprint == first.fingerprint == prepared(spec, tmp_path / "cache").fingerprint
    elsewhere = prepare(spec, tmp_path / "other", quiet)
    for file in ("tokenizer/tokenizer.json", "train/00000.tokens", "heldout/index.json"):
        assert (elsewhere.tokenizer_dir.parent / file).read_bytes() == (
            first.tokenizer_dir.parent / file
        ).read_bytes()


def test_changed_content_is_prepared_anew(corpus: Path, tmp_path: Path) -> None:
    spec = a_spec(corpus.as_uri())
    first = prepare(spec, tmp_path / "cache", quiet)
    (corpus / "1.txt").write_text("something else\n")
    second = prepare(spec, tmp_path / "cache", quiet)
    larger = prepare(a_spec(corpus.as_uri(), vocabulary=301), tmp_path / "cache", quiet)
    assert len({first.fingerprint, second.fingerprint, larger.fingerprint}) == 3
    assert prepared(spec, tmp_path / "cache").fingerprint == second.fingerprint


def test_ranks_only_open_what_an_agent_prepared(corpus: Path, tmp_path: Path) -> None:
    spec = a_spec(corpus.as_uri())
    with pytest.raises(DataError, match=r"spec.data.*not prepared in .*call prepare first"):
        prepared(spec, tmp_path / "cache")
    prepare(spec, tmp_path / "cache", quiet)
    for path in corpus.iterdir():
        path.unlink()
    assert prepared(spec, tmp_path / "cache").train.documents == 3


def test_json_lines_are_documents(tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    file.write_text("".join(json.dumps({"text": text, "id": 1}) + "\n" for text in TEXTS) + "\n")
    documents = list(Source("f", file.as_uri()).documents())
    assert [document.text for document in documents] == TEXTS


@pytest.mark.parametrize(
    "content, message",
    [
        ('{"text": "a"}\nnot json\n', r"spec.data.sources\[0\].uri.*chat.jsonl, line 2: not JSON"),
        ('{"text": "a"}\n{"body": "b"}\n', r'chat.jsonl, line 2: no string under "text"'),
        ("[1]\n", r'line 1: no string under "text"'),
        ("\n", r"no document in it"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "chat.jsonl"
    file.write_text(content)
    with pytest.raises(DataError, match=message):
        prepare(a_spec(file.as_uri()), tmp_path / "cache", quiet)


@pytest.mark.parametrize(
    "uri, message",
    [
        (
            "file:///does/not/exist.txt",
            r"spec.data.sources\[0\].uri: 'file:///does/not/exist.txt': there is no file",
        ),
        ("gs://lake/chat", r"'gs://lake/chat': not a place that can be used here. Fix: use file:///PATH"),
        ("python-stdlib:tests", r"not a place"),
    ],
)
def test_a_source_that_cannot_be_read_is_refused(tmp_path: Path, uri: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        prepare(a_spec(uri), tmp_path / "cache", quiet)


def test_text_that_is_not_utf8_is_named_with_its_byte(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"latin.txt, byte 3: not UTF-8"):
        prepare(a_spec((tmp_path / "latin.txt").as_uri()), tmp_path / "cache", quiet)


def test_a_vocabulary_too_small_for_bytes_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"vocabularySize: 256: .*need 257 tokens. Fix: use at least 257"):
        prepare(a_spec(corpus.as_uri(), vocabulary=256), tmp_path / "cache", quiet)


def test_a_given_tokenizer_is_used_as_it_is(corpus: Path, tmp_path: Path) -> None:
    trained = prepare(a_spec(corpus.as_uri()), tmp_path / "cache", quiet)
    for uri in (trained.tokenizer_dir.as_uri(), (trained.tokenizer_dir / "tokenizer.json").as_uri()):
        given = prepare(a_spec(corpus.as_uri(), tokenizer=uri), tmp_path / "cache", quiet)
        assert given.train.read(0, 50).tolist() == trained.train.read(0, 50).tolist()
    with pytest.raises(DataError, match=r"spec.model.tokenizer.uri.*there is no file .*tokenizer.json"):
        prepare(a_spec(corpus.as_uri(), tokenizer=corpus.as_uri()), tmp_path / "cache", quiet)
    (corpus / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"tokenizer.json cannot be read"):
        prepare(a_spec(corpus.as_uri(), tokenizer=corpus.as_uri()), tmp_path / "cache", quiet)


def test_the_standard_library_is_split_by_name() -> None:
    train = [document.name for document in stdlib_documents(heldout=False)]
    heldout = [document.name for document in stdlib_documents(heldout=True)]
    assert train == [document.name for document in stdlib_documents(heldout=False)]
    assert not set(train) & set(heldout)
    assert len(train) > 200 and len(heldout) > 5
    assert any(name.startswith("topic:") for name in train)
    assert not any("test" in name.split("/") or "site-packages" in name for name in train + heldout)


def _slow_prepare(spec: dict, cache: Path) -> None:
    encode = text_cache.tokenizers.encode

    def slowly(tokenizer, texts, end_token):
        time.sleep(0.05)
        return encode(tokenizer, texts, end_token)

    text_cache.tokenizers.encode = slowly
    text_cache.ENCODE_CHARACTERS = 50
    prepare(spec, cache, quiet)


def test_a_kill_during_prepare_leaves_nothing_half_made(corpus: Path, tmp_path: Path) -> None:
    spec, cache = a_spec(corpus.as_uri(), heldout=(corpus.as_uri(),)), tmp_path / "cache"
    context = multiprocessing.get_context("fork")
    for attempt in range(5):
        process = context.Process(target=_slow_prepare, args=(spec, cache))
        process.start()
        deadline = time.monotonic() + 30
        while not list(cache.glob("data/.*/train")) and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(0.04 * attempt)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        with pytest.raises(DataError, match="not prepared"):
            prepared(spec, cache)
    data = prepare(spec, cache, quiet)
    data.train.verify()
    assert data.train.documents == 3
    assert not list(cache.glob("data/.*"))


def test_nodes_that_share_a_cache_prepare_once(corpus: Path, tmp_path: Path) -> None:
    spec, cache = a_spec(corpus.as_uri()), tmp_path / "cache"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_slow_prepare, args=(spec, cache)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len([path for path in (cache / "data").iterdir() if path.is_dir()]) == 1
    prepared(spec, cache).train.verify()
