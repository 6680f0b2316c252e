"""Text of documents: no line can bring a run down otherwise than by its name, and none makes special tokens."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from tests.trainer.texts import a_spec, quiet
from tokenizers import AddedToken, Tokenizer, models

from trainer.data import tokenizer as tokenizers
from trainer.data import write
from trainer.data.errors import DataError
from trainer.data.prepare import prepare
from trainer.data.store import TokenStore
from trainer.data.tokenizer import END_TOKEN

GOOD = '{"text": "good \\ud83d\\ude00"}\n'  # a whole pair is a character
SURROGATE = r"line 2: character 4 of the text is \\ud800, half of a surrogate pair. Fix: write the whole"
LINES: list[tuple[bytes, str]] = [
    (b'{"text": "abc \\ud800 def"}', SURROGATE),
    (b'{"text": "abc \xed\xa0\x80 def"}', SURROGATE),  # the same as bytes
    (b'{"text": "abc \\ud800"}', SURROGATE),
    (b'{"text": "abc \\udc00 def"}', r"line 2: character 4 of the text is \\udc00, half"),
    (b'{"text": "caf\xe9"}', r"line 2: not JSON: .*utf-8"),
    (b'{"text": ' + b"[" * 200_000, r"line 2: not JSON: .*recursion"),
]


@pytest.mark.parametrize(("line", "message"), LINES)
@pytest.mark.parametrize("heldout", [False, True])
def test_a_line_that_is_no_text_is_named(line: bytes, message: str, heldout: bool, tmp_path: Path) -> None:
    file, good = tmp_path / "chat.jsonl", tmp_path / "good.jsonl"
    file.write_bytes(GOOD.encode() + line + b"\n")
    good.write_text(GOOD)
    spec = a_spec(good.as_uri(), heldout=(file.as_uri(),)) if heldout else a_spec(file.as_uri())
    field = "validation" if heldout else "sources"
    with pytest.raises(
        DataError, match=rf"(?s)spec.data.{field}\[0\].uri: .*chat.jsonl, {message}"
    ) as raised:
        prepare(spec, tmp_path / "cache", quiet)
    str(raised.value).encode()  # it can be written into any log


@pytest.mark.parametrize(("line", "message"), LINES[:1])
def test_the_tool_names_a_line_that_is_no_text(
    line: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_bytes(GOOD.encode() + line + b"\n")
    arguments = [str(tmp_path / "a.jsonl"), "--output", str(tmp_path / "s"), "--train-tokenizer", "280"]
    assert write.main(arguments) == int(DataError.exit_code)
    assert "a.jsonl, line 2: character 4 of the text is \\ud800" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_lines_whose_compression_is_damaged_are_named(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(b"".join(b'{"text": "%d"}\n' % (n * 7919) for n in range(9000))))
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "a.jsonl.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"a.jsonl.gz, (after )?line \d+: "):
        prepare(a_spec((tmp_path / "a.jsonl.gz").as_uri()), tmp_path / "cache", quiet)


def bad_column() -> pyarrow.Table:
    """Rows "a", then half a surrogate pair as bytes, then "d"; parquet and arrow do not look into strings."""
    offsets = pyarrow.py_buffer(b"".join(at.to_bytes(4, "little") for at in (0, 1, 6, 7)))
    data = pyarrow.py_buffer(b"ab\xed\xa0\x80cd")
    return pyarrow.table({"text": pyarrow.Array.from_buffers(pyarrow.string(), 3, [None, offsets, data])})


def write_parquet(folder: Path) -> Path:
    pyarrow.parquet.write_table(bad_column(), folder / "a.parquet")
    return folder / "a.parquet"


def write_arrow(folder: Path) -> Path:
    table = bad_column()
    with (
        pyarrow.OSFile(str(folder / "a.arrow"), "wb") as file,
        pyarrow.ipc.new_stream(file, table.schema) as out,
    ):
        out.write_table(table)
    return folder / "a.arrow"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (write_parquet, r"a.parquet, row 1: not UTF-8 at byte 1 of the text"),
        (write_arrow, r"a.arrow, after row 0: not arrow that can be read: .*UTF8 sequence at string index 1"),
    ],
)
def test_a_row_that_is_no_text_is_named(kind: Callable[[Path], Path], message: str, tmp_path: Path) -> None:
    file = kind(tmp_path)
    with pytest.raises(DataError, match=message):
        prepare(a_spec(file.as_uri()), tmp_path / "cache", quiet)


TEXTS = ["before <|endoftext|> after", "<|endoftext|>", "<|endoftext|><|im_start|>user", "ordinary text"]


def jsonl(folder: Path) -> Path:
    file = folder / "a.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return file


def a_tokenizer(folder: Path, *, special: bool) -> Path:
    """With two added tokens; `special`: whether the file says that the end token is one."""
    made = tokenizers.train(300, ["some words to learn"] * 3)
    made.add_special_tokens([AddedToken("<|im_start|>")])
    content = json.loads(made.to_str())
    content["added_tokens"][0]["special"] = special
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END_TOKEN}))
    return folder


def check_documents(store: TokenStore, tokenizer: Tokenizer) -> None:
    documents = [store.read(start, end).tolist() for start, end in pairwise(store.starts.tolist())]
    assert len(documents) == len(TEXTS)
    special = {
        number for number, one in tokenizer.get_added_tokens_decoder().items() if one.content[:2] == "<|"
    }
    for text, ids in zip(TEXTS, documents, strict=True):
        assert ids[-1] == store.end_token
        assert special.isdisjoint(ids[:-1])
        assert tokenizer.decode(ids[:-1], skip_special_tokens=False) == text


@pytest.mark.parametrize("given", ["trained", "special", "not special"])
def test_text_that_looks_like_a_special_token_is_text(
    given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = jsonl(tmp_path)
    folder = None if given == "trained" else a_tokenizer(tmp_path / "t", special=given == "special")
    data = prepare(a_spec(file.as_uri(), tokenizer=folder and folder.as_uri()), tmp_path / "cache", quiet)
    check_documents(data.train, Tokenizer.from_file(str(data.tokenizer_dir / "tokenizer.json")))
    which = ["--tokenizer", str(folder)] if folder else ["--train-tokenizer", "300"]
    assert write.main([str(file), "--output", str(tmp_path / "s"), *which]) == 0, capsys.readouterr().err
    made = Tokenizer.from_file(str(tmp_path / "s" / "tokenizer" / "tokenizer.json"))
    check_documents(TokenStore.at(tmp_path / "s"), made)


def test_a_tokenizer_whose_model_makes_its_end_token_of_text_is_refused(tmp_path: Path) -> None:
    letters = [(letter, -3.0) for letter in "</s>abc "]
    made = Tokenizer(models.Unigram([("<unk>", 0.0), ("</s>", 0.0), *letters], unk_id=0))
    made.add_special_tokens(["</s>"])
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    for text, right in (("a b </ s>", True), ("abc </s> abc", False)):
        (tmp_path / "a.txt").write_text(text)
        spec = a_spec((tmp_path / "a.txt").as_uri(), tokenizer=tmp_path.as_uri())
        if right:
            assert prepare(spec, tmp_path / "cache", quiet).train.tokens == len(text) + 1
            continue
        with pytest.raises(DataError, match=r"spec.model.tokenizer: '</s>': .*begins 'abc </s> abc'. Fix: "):
            prepare(spec, tmp_path / "cache", quiet)
