"""Documents of one file on this machine, by its kind: plain text, JSON lines, parquet, arrow.

Nothing is skipped in silence: what cannot be read is a DataError that names field, value, file and line, row or
byte. A file is never held in memory, but for plain text, where it is one document. Called by `sources`.
"""

from __future__ import annotations

import glob
import gzip
import importlib
import json
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.data.errors import DataError

TEXT_SUFFIXES = (".txt", ".md", ".py")
JSON_SUFFIXES = (".jsonl", ".jsonl.gz")
TABLE_KINDS = {".parquet": "parquet", ".arrow": "arrow"}
SUFFIXES = (*TEXT_SUFFIXES, *JSON_SUFFIXES, *TABLE_KINDS)
"""Files of a folder that are read; another file is only read when the source names it itself, as plain text."""

DEFAULT_COLUMN = "text"
_BATCH_ROWS = 256


@dataclass(frozen=True)
class Document:
    name: str
    text: str


@dataclass(frozen=True)
class Place:
    """What errors name: the field of the spec (or option of the tool) and its value; and where the text stands."""

    field: str
    value: str
    column: str = DEFAULT_COLUMN

    def wrong(self, problem: str, fix: str) -> DataError:
        return DataError(self.field, self.value, problem, fix)


def file_documents(path: Path, name: str, place: Place) -> Iterator[Document]:
    """Documents of the file at `path`; `name` is what it is called where it comes from. Raises DataError."""
    if name.endswith(JSON_SUFFIXES):
        return _json_lines(path, name, place)
    kind = TABLE_KINDS.get(Path(name).suffix)
    return _table(path, name, kind, place) if kind else iter([Document(name, _text(path, place))])


def _text(path: Path, place: Place) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        problem = f"{path}, byte {error.start}: not UTF-8"
        raise place.wrong(problem, "convert the file to UTF-8, or leave it out") from error
    except OSError as error:
        raise place.wrong(f"{path}: {error.strerror}", "make the file readable") from error


def _json_lines(path: Path, name: str, place: Place) -> Iterator[Document]:
    opened = gzip.open if name.endswith(".gz") else open
    number = 0
    try:
        with opened(path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield Document(f"{name}:{number}", _line(path, number, line, place))
    except (OSError, EOFError, zlib.error) as error:
        raise place.wrong(
            f"{path}, after line {number}: {error}", "make the file readable and whole"
        ) from error


def _line(path: Path, number: int, line: bytes, place: Place) -> str:
    fix = f'write one JSON object a line: {{"{place.column}": "…"}}'
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise place.wrong(f"{path}, line {number}: not JSON: {error}", fix) from error
    text = record.get(place.column) if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise place.wrong(f'{path}, line {number}: no string under "{place.column}"', fix)
    return _whole_characters(text, f"{path}, line {number}", place)


def _whole_characters(text: str, where: str, place: Place) -> str:
    """JSON can write half a character (`\\ud800` without its other half), which no tokenizer and no file takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        problem = f"{where}: character {error.start} of the text is {half}, half of a surrogate pair"
        raise place.wrong(problem, "write the whole character, or leave it out") from error
    return text


def _table(path: Path, name: str, kind: str, place: Place) -> Iterator[Document]:
    """Through `datasets`, some rows at a time. It is imported here: it takes a second, and most runs need it not."""
    datasets, arrow = importlib.import_module("datasets"), importlib.import_module("pyarrow")
    row = 0
    with tempfile.TemporaryDirectory(prefix="trainingrun-datasets-") as cache:
        try:
            stream = datasets.load_dataset(
                kind, data_files=glob.escape(str(path)), split="train", streaming=True, cache_dir=cache
            )
            for batch in stream.with_format("arrow").iter(batch_size=_BATCH_ROWS):
                if place.column not in batch.column_names:
                    columns = ", ".join(sorted(batch.column_names))
                    raise place.wrong(f'{path}: no column "{place.column}"', f"it has: {columns}")
                for value in batch.column(place.column):
                    text = value.as_py()  # one at a time: text that is not UTF-8 fails in its own row
                    if not isinstance(text, str):
                        problem = f'{path}, row {row}: no string under "{place.column}"'
                        raise place.wrong(problem, "write a text into each row, or leave the row out")
                    yield Document(f"{name}:{row}", text)
                    row += 1
        except UnicodeDecodeError as error:
            problem = f"{path}, row {row}: not UTF-8 at byte {error.start} of the text"
            raise place.wrong(problem, "write whole characters, or leave the row out") from error
        except (arrow.lib.ArrowException, OSError, ValueError) as error:
            problem = f"{path}, after row {row}: not {kind} that can be read: {error}"
            raise place.wrong(problem, "write the file again") from error
