"""The tool that writes token stores: from all kinds of files the same documents, each counted once."""

from __future__ import annotations

import gzip
import json
import re
from itertools import pairwise
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from tests.trainer.texts import a_spec, quiet
from tokenizers import Tokenizer

from trainer.data import verify, write
from trainer.data.errors import DataError
from trainer.data.prepare import prepare, prepared
from trainer.data.store import TokenStore
from trainer.data.tokenizer import END_TOKEN, train

TEXTS = [f"document {number}: " + "the quick brown fox " * (number % 7) for number in range(200)]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    train(300, TEXTS).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": END_TOKEN}))
    return tmp_path / "tokenizer.json"


def write_jsonl(folder: Path) -> Path:
    file = folder / "a.jsonl"
    file.write_text("".join(json.dumps({"text": text, "id": 1}) + "\n" for text in TEXTS))
    return file


def write_gzip(folder: Path) -> Path:
    file = folder / "a.jsonl.gz"
    file.write_bytes(gzip.compress(write_jsonl(folder).read_bytes()))
    return file


def write_parquet(folder: Path) -> Path:
    table = pyarrow.table({"id": list(range(len(TEXTS))), "text": TEXTS})
    pyarrow.parquet.write_table(table, folder / "a.parquet", row_group_size=30)
    return folder / "a.parquet"


def write_arrow(folder: Path) -> Path:
    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(str(folder / "saved"), num_shards=3)
    return folder / "saved"


def write_texts(folder: Path) -> Path:
    (folder / "texts").mkdir()
    for number, text in enumerate(TEXTS):
        (folder / "texts" / f"{number:03d}.txt").write_text(text)
    return folder / "texts"


def documents_of(store: TokenStore, tokenizer: Path) -> list[str]:
    read = Tokenizer.from_file(str(tokenizer))
    ids = [store.read(start, end).tolist() for start, end in pairwise(store.starts.tolist())]
    assert all(document[-1] == store.end_token for document in ids)
    return [read.decode(document[:-1], skip_special_tokens=False) for document in ids]


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    code = write.main([str(argument) for argument in arguments])
    output = capsys.readouterr()
    return code, output.out if code == 0 else output.err


@pytest.mark.parametrize("kind", [write_jsonl, write_gzip, write_parquet, write_arrow, write_texts])
def test_all_kinds_of_files_give_the_same_documents(kind, tmp_path, tokenizer, capsys) -> None:
    code, printed = run(
        capsys,
        kind(tmp_path),
        "--output",
        tmp_path / "store",
        "--tokenizer",
        tokenizer,
        "--shard-tokens",
        1024,
    )
    assert code == 0, printed
    store = TokenStore.at(tmp_path / "store")
    store.verify()
    assert documents_of(store, tokenizer) == TEXTS
    assert len(store.index.shards) > 2
    told = json.loads(printed)
    assert told["documentsRead"] == told["documents"] == store.documents == len(TEXTS)
    assert told["tokens"] == store.tokens == sum(shard.tokens for shard in store.index.shards)
    assert (tmp_path / "store" / "tokenizer" / "tokenizer.json").read_bytes() == tokenizer.read_bytes()


def test_documents_in_are_those_kept_and_those_dropped(tmp_path, tokenizer, capsys) -> None:
    lines = ["one", "", "two", "<|endoftext|>", "", "three"]
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"body": line}) + "\n" for line in lines))
    code, printed = run(
        capsys, file, file, "--output", tmp_path / "store", "--tokenizer", tokenizer, "--column", "body"
    )
    assert code == 0, printed
    told = json.loads(printed)
    assert (told["documentsRead"], told["documents"], told["dropped"]) == (12, 8, {"empty": 4})
    kept = [
        "one",
        "two",
        "<|endoftext|>",
        "three",
    ]  # a document that looks like the separator is one all the same
    assert documents_of(TokenStore.at(tmp_path / "store"), tokenizer) == kept * 2


def test_a_tokenizer_can_be_trained_on_the_inputs(tmp_path, capsys) -> None:
    code, printed = run(capsys, write_texts(tmp_path), "--output", tmp_path / "s", "--train-tokenizer", 280)
    assert code == 0, printed
    assert json.loads(printed)["vocabularySize"] == 280
    assert (
        documents_of(TokenStore.at(tmp_path / "s"), tmp_path / "s" / "tokenizer" / "tokenizer.json") == TEXTS
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "missing", r"INPUT: 'file://.*missing': there is no file .*missing. Fix: "),
        (
            lambda folder: _file(folder / "a.jsonl", b'{"body": "x"}\n'),
            r'a.jsonl, line 1: no string under "text"',
        ),
        (lambda folder: _file(folder / "a.jsonl", b'{"text": ""}\n'), r"no document that is not empty"),
        (
            lambda folder: _file(folder / "a.parquet", b"not parquet"),
            r"a.parquet, after row 0: not parquet that",
        ),
        (
            lambda folder: _file(folder / "a.arrow", b"not arrow"),
            r"a.arrow, after row 0: not arrow that can be",
        ),
        (
            lambda folder: _file(folder / "a.jsonl.gz", b"not gzip"),
            r"a.jsonl.gz, after line 0: Not a gzipped file",
        ),
        (lambda folder: _other_column(folder), r'other.parquet: no column "text". Fix: it has: body, id'),
        (lambda folder: _null(folder), r'null.parquet, row 1: no string under "text"'),
    ],
)
def test_input_that_cannot_be_read_is_named_and_leaves_nothing(
    make, message, tmp_path, tokenizer, capsys
) -> None:
    code, printed = run(capsys, make(tmp_path), "--output", tmp_path / "out" / "s", "--tokenizer", tokenizer)
    assert code == int(DataError.exit_code)
    assert re.search(message, printed), printed
    assert not list((tmp_path / "out").glob("*"))
    assert not list((tmp_path / "out").glob(".*"))


def _file(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _other_column(folder: Path) -> Path:
    pyarrow.parquet.write_table(pyarrow.table({"id": [1], "body": ["x"]}), folder / "other.parquet")
    return folder / "other.parquet"


def _null(folder: Path) -> Path:
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x", None]}), folder / "null.parquet")
    return folder / "null.parquet"


def test_a_store_that_is_there_is_not_written_over(tmp_path, tokenizer, capsys) -> None:
    (tmp_path / "s").mkdir()
    code, printed = run(capsys, write_texts(tmp_path), "--output", tmp_path / "s", "--tokenizer", tokenizer)
    assert code == int(DataError.exit_code)
    assert "error: --output: " in printed and "exists already. Fix: name a new folder" in printed


def test_verify_tells_a_whole_store_from_a_damaged_one(tmp_path, tokenizer, capsys) -> None:
    run(capsys, write_texts(tmp_path), "--output", tmp_path / "s", "--tokenizer", tokenizer)
    assert verify.main([str(tmp_path / "s")]) == 0
    assert json.loads(capsys.readouterr().out)["documents"] == len(TEXTS)
    file = tmp_path / "s" / "00000.tokens"
    file.write_bytes(file.read_bytes()[:-2] + b"\xff\xff")
    assert verify.main([str(tmp_path / "s")]) == 1
    assert f"error: {file}: byte 0: " in capsys.readouterr().err


def tokens_spec(store: Path, **changes: str) -> dict:
    spec = a_spec(store.as_uri(), tokenizer=(store / "tokenizer").as_uri())
    spec["data"]["sources"][0] |= {"format": "Tokens", **changes}
    return spec


def test_a_run_reads_a_store_where_it_is(tmp_path, tokenizer, capsys) -> None:
    run(capsys, write_texts(tmp_path), "--output", tmp_path / "s", "--tokenizer", tokenizer)
    spec = tokens_spec(tmp_path / "s")
    data = prepare(spec, tmp_path / "cache", quiet)
    again = prepared(spec, tmp_path / "cache")
    assert again.train.folder == data.train.folder == tmp_path / "s"
    assert (again.vocabulary_size, again.fingerprint) == (data.vocabulary_size, data.fingerprint)
    assert (again.tokenizer_dir / "tokenizer.json").read_bytes() == tokenizer.read_bytes()
    assert not list((tmp_path / "cache").rglob("*.tokens"))


def test_a_store_and_the_runs_tokenizer_must_belong_together(tmp_path, tokenizer, capsys) -> None:
    run(capsys, write_texts(tmp_path), "--output", tmp_path / "s", "--tokenizer", tokenizer)
    run(capsys, tmp_path / "texts", "--output", tmp_path / "other", "--train-tokenizer", 290)
    spec = tokens_spec(tmp_path / "s")
    spec["model"]["tokenizer"] = {"uri": (tmp_path / "other" / "tokenizer").as_uri(), "train": None}
    message = r"sources\[0\].uri: 'file://.*/s': its tokens were made by another .*Fix: set spec.model.tokenizer.uri"
    with pytest.raises(DataError, match=message):
        prepare(spec, tmp_path / "cache", quiet)
    spec["model"]["tokenizer"] = {"uri": None, "train": {"vocabularySize": 300}}
    with pytest.raises(
        DataError, match=r"tokenizer.train: 300: no source is text to train it on. Fix: set spec.mod"
    ):
        prepare(spec, tmp_path / "cache", quiet)


def test_a_folder_that_is_no_store_is_refused(tmp_path, tokenizer) -> None:
    (tmp_path / "s" / "tokenizer").mkdir(parents=True)
    (tmp_path / "s" / "tokenizer" / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    with pytest.raises(
        DataError, match=r"there is no token store: no .*index.json. Fix: name the folder that python"
    ):
        prepare(tokens_spec(tmp_path / "s"), tmp_path / "cache", quiet)
    spec = tokens_spec(tmp_path / "s", uri="python-stdlib:train")
    with pytest.raises(
        DataError, match=r"sources\[0\].format: 'Tokens': python-stdlib:train is text. Fix: use Text"
    ):
        prepare(spec, tmp_path / "cache", quiet)
