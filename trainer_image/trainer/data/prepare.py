"""Documents to token stores, once: cached by content, made under a lock, and there only when whole.

`prepare` (agents) makes or finds the stores; `prepared` (ranks) only opens them, without reading the sources
again. The folder's name is a hash of the documents, the tokenizer's definition and the format, so changed
input is another folder and never a mixture. Several nodes may share the cache folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.data import tokenizer as tokenizers
from trainer.data.errors import DataError
from trainer.data.sources import Source
from trainer.data.store import FORMAT_VERSION, StoreWriter, TokenStore

Say = Callable[[str], None]
ENCODE_CHARACTERS = 2_000_000  # text that is in memory at once


@dataclass(frozen=True)
class PreparedData:
    train: TokenStore
    heldout: TokenStore | None
    tokenizer_dir: Path
    vocabulary_size: int  # rows of the embedding
    fingerprint: str


def prepare(spec: dict[str, Any], cache_dir: Path, say: Say) -> PreparedData:
    """Make what `spec` needs unless it is there. `say` gets progress for people. Raises DataError."""
    wanted = tokenizers.definition(spec)
    splits = {"train": _sources(spec, "sources"), "heldout": _sources(spec, "validation")}
    if not splits["train"]:
        raise DataError("spec.data.sources", [], "nothing to train on", "name at least one source")
    say("reading the documents")
    digests = {name: _digest(name, sources) for name, sources in splits.items() if sources}
    identity = [
        f"format:{FORMAT_VERSION}",
        wanted.identity(),
        *(f"{name}:{digests[name]}" for name in sorted(digests)),
    ]
    fingerprint = hashlib.sha256("\n".join(identity).encode()).hexdigest()
    folder = _folder(cache_dir, fingerprint)
    with _lock(cache_dir, fingerprint):
        if not folder.exists():
            _make(folder, wanted, splits, digests, fingerprint, say)
    _remember(cache_dir, spec, fingerprint)
    data = _open(folder, fingerprint)
    say(f"{data.train.tokens:,} tokens in {data.train.documents:,} documents")
    return data


def prepared(spec: dict[str, Any], cache_dir: Path) -> PreparedData:
    """Open what `prepare` made last for this spec. Raises DataError when it did not, StoreDamaged."""
    file = _request_file(cache_dir, spec)
    try:
        fingerprint: str = json.loads(file.read_text())["fingerprint"]
    except FileNotFoundError:
        problem = f"not prepared in {cache_dir}"
        raise DataError(
            "spec.data", _uris(spec), problem, "call prepare first, with the same cache folder"
        ) from None
    return _open(_folder(cache_dir, fingerprint), fingerprint)


def _open(folder: Path, fingerprint: str) -> PreparedData:
    facts = json.loads((folder / "prepared.json").read_text())
    heldout = TokenStore(folder / "heldout") if facts["heldout"] else None
    return PreparedData(
        TokenStore(folder / "train"), heldout, folder / "tokenizer", facts["vocabularySize"], fingerprint
    )


def _make(
    folder: Path,
    wanted: tokenizers.TokenizerDefinition,
    splits: dict[str, list[Source]],
    digests: dict[str, str],
    fingerprint: str,
    say: Say,
) -> None:
    # We hold the lock: a temporary folder is the rest of a process that was killed.
    for leftover in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(leftover)
    temporary = folder.parent / f".{folder.name}.{os.getpid()}"
    temporary.mkdir(parents=True)
    if wanted.folder is None:
        say(f"training a tokenizer of {wanted.vocabulary_size:,} tokens")
    texts = (document.text for source in splits["train"] for document in source.documents())
    tokenizer, end_token, vocabulary_size = tokenizers.make(wanted, texts, temporary / "tokenizer")
    for name, digest in digests.items():
        say(f"tokenising ({name})")
        with StoreWriter(temporary / name, vocabulary_size, end_token) as store:
            hashed = hashlib.sha256()
            for batch in _batches(splits[name]):
                for text in batch:
                    _hash_text(hashed, text)
                for ids in tokenizers.encode(tokenizer, batch):
                    store.add(ids)
        if hashed.hexdigest() != digest:
            raise DataError("spec.data", name, "the documents changed while they were read", "start again")
    facts = {"fingerprint": fingerprint, "vocabularySize": vocabulary_size, "heldout": "heldout" in digests}
    (temporary / "prepared.json").write_text(json.dumps(facts))
    temporary.rename(folder)


def _sources(spec: dict[str, Any], part: str) -> list[Source]:
    sources = []
    for number, entry in enumerate(spec["data"].get(part) or []):
        field = f"spec.data.{part}[{number}]"
        kind = entry.get("format", "Text")
        if kind != "Text":
            raise DataError(f"{field}.format", kind, "not a format that this trainer reads", "use Text")
        sources.append(Source(f"{field}.uri", entry["uri"]))
    return sources


def _digest(name: str, sources: list[Source]) -> str:
    hashed = hashlib.sha256()
    for source in sources:
        empty = True
        for document in source.documents():
            _hash_text(hashed, document.text)
            empty = False
        if empty:
            fix = "name a file or folder that holds text (.txt, .md, .py in a folder)"
            raise DataError(source.field, source.uri, f"no document in it ({name})", fix)
    return hashed.hexdigest()


def _hash_text(hashed: Any, text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    hashed.update(len(data).to_bytes(8, "little"))
    hashed.update(data)


def _batches(sources: list[Source]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for source in sources:
        for document in source.documents():
            batch.append(document.text)
            size += len(document.text)
            if size >= ENCODE_CHARACTERS:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _folder(cache_dir: Path, fingerprint: str) -> Path:
    return cache_dir / "data" / fingerprint[:32]


@contextlib.contextmanager
def _lock(cache_dir: Path, fingerprint: str) -> Iterator[None]:
    (cache_dir / "data").mkdir(parents=True, exist_ok=True)
    with (cache_dir / "data" / f"{fingerprint[:32]}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _request_file(cache_dir: Path, spec: dict[str, Any]) -> Path:
    request = json.dumps([FORMAT_VERSION, spec["data"], spec["model"].get("tokenizer")], sort_keys=True)
    return cache_dir / "requests" / f"{hashlib.sha256(request.encode()).hexdigest()[:32]}.json"


def _remember(cache_dir: Path, spec: dict[str, Any], fingerprint: str) -> None:
    file = _request_file(cache_dir, spec)
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps({"fingerprint": fingerprint}))
    temporary.replace(file)


def _uris(spec: dict[str, Any]) -> list[str]:
    return [entry["uri"] for part in ("sources", "validation") for entry in spec["data"].get(part) or []]
