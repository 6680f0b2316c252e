"""Writes a token store from documents, so that runs can read it with `format: Tokens`.

    python -m trainer.data.write --output STORE (--tokenizer FOLDER | --train-tokenizer SIZE) INPUT...

An INPUT is a file or folder of .txt, .md, .py, .jsonl, .jsonl.gz, .parquet or .arrow files, or an s3:// or
https:// URI of one. Documents are read and tokenised some at a time; memory does not depend on their number. The
store counts once its index is written; the tokenizer lies in its folder tokenizer/. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer.data import tokenizer as tokenizers
from trainer.data.documents import DEFAULT_COLUMN
from trainer.data.errors import DataError
from trainer.data.files import beside
from trainer.data.remote import is_remote
from trainer.data.shards import file_sha256
from trainer.data.sources import Source
from trainer.data.store_format import StoreIndex
from trainer.data.store_writer import SHARD_TOKENS, StoreWriter
from trainer.data.text_cache import batches
from trainer.errors import TrainerError

EMPTY = "empty"  # reason for which a document is dropped
SMALLEST_SHARD = 1024


def write(
    sources: list[Source],
    output: Path,
    wanted: tokenizers.TokenizerDefinition,
    *,
    shard_tokens: int = SHARD_TOKENS,
) -> StoreIndex:
    """Write the documents of `sources`, in their order, as the store `output`. Raises DataError, SourceAway."""
    if output.exists():
        raise DataError("--output", str(output), "exists already", "name a new folder, or remove it first")
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = beside(output)
    try:
        texts = (document.text for source in sources for document in source.documents())
        with tempfile.TemporaryDirectory(prefix="trainingrun-tokenizer-") as folder:
            made = Path(folder) / "tokenizer"
            tokenizer, end_token, vocabulary = tokenizers.make(wanted, texts, made)
            sha256 = file_sha256(made / "tokenizer.json")
            writer = StoreWriter(
                temporary, vocabulary, end_token, shard_tokens=shard_tokens, tokenizer=sha256
            )
            for batch in batches(_kept(sources, writer)):
                for ids in tokenizers.encode(tokenizer, batch, end_token):
                    writer.add(ids)
            shutil.copytree(made, temporary / "tokenizer")
        if not writer.documents:
            inputs = ", ".join(source.uri for source in sources)
            raise DataError("INPUT", inputs, "no document that is not empty", "name files that hold text")
        index = writer.close()
        temporary.rename(output)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return index


def _kept(sources: list[Source], writer: StoreWriter) -> Iterator[str]:
    for source in sources:
        for document in source.all_documents():
            if document.text:
                yield document.text
            else:
                writer.drop(EMPTY)


def summary(index: StoreIndex) -> dict[str, Any]:
    return {
        "documentsRead": index.documents_read,
        "documents": index.documents,
        "dropped": dict(index.dropped or {}),
        "tokens": index.tokens,
        "shards": len(index.shards),
        "vocabularySize": index.vocabulary_size,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.data.write", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="file, folder or URI of documents")
    parser.add_argument("--output", type=Path, required=True, help="folder of the store; must not exist")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--tokenizer", type=Path, help="folder with tokenizer.json, or that file")
    which.add_argument(
        "--train-tokenizer", type=int, metavar="SIZE", help="train one of SIZE tokens on the inputs"
    )
    parser.add_argument("--column", default=DEFAULT_COLUMN, help="field of JSON lines, parquet and arrow")
    parser.add_argument("--shard-tokens", type=int, default=SHARD_TOKENS, help="largest shard (%(default)s)")
    parser.add_argument("--cache", type=Path, help="folder for copies of remote inputs (a temporary one)")
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="trainingrun-inputs-") as temporary:
            index = write(
                [
                    _source(given, options.cache or Path(temporary), options.column)
                    for given in options.inputs
                ],
                options.output.absolute(),
                _tokenizer(options.tokenizer, options.train_tokenizer),
                shard_tokens=_shard_tokens(options.shard_tokens),
            )
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    print(json.dumps(summary(index)))
    return 0


def _source(given: str, cache_dir: Path, column: str) -> Source:
    uri = (
        given if is_remote(given) or "://" in given or given.startswith("python-stdlib:") else _as_uri(given)
    )
    return Source("INPUT", uri, cache_dir, column=column)


def _as_uri(path: str) -> str:
    return f"file://{Path(path).absolute()}"


def _tokenizer(folder: Path | None, size: int | None) -> tokenizers.TokenizerDefinition:
    wanted: dict[str, Any] = {"uri": _as_uri(str(folder))} if folder else {"train": {"vocabularySize": size}}
    return tokenizers.definition({"model": {"tokenizer": wanted}})


def _shard_tokens(tokens: int) -> int:
    if tokens < SMALLEST_SHARD:
        raise DataError(
            "--shard-tokens", tokens, "so small shards make too many files", f"use {SMALLEST_SHARD} or more"
        )
    return tokens


if __name__ == "__main__":
    raise SystemExit(main())
