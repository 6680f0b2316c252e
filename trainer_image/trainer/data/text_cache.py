"""Text made into token stores, once: cached by content, made under a lock, and there only when whole.

The folder's name is a hash of the documents, the tokenizer's definition and the format, so changed input is another
folder and never a mixture. The tokenizer of the run lies in the folder too, also when no source is text. What has
changed in the folder since it was made is found when it is opened, and made anew. Called by `prepare`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trainer.data import tokenizer as tokenizers
from trainer.data.errors import DataError, StoreDamaged
from trainer.data.files import beside, discard, locked
from trainer.data.sealed import check_files, described, read_sealed, write_sealed
from trainer.data.shards import file_sha256
from trainer.data.sources import Source
from trainer.data.store import TokenStore
from trainer.data.store_format import INDEX_FILE
from trainer.data.store_writer import StoreWriter

CONTENT_VERSION = (
    2  # raised when the same documents would become other tokens; 1 found special tokens in texts
)
_FACTS = "prepared.json"
ENCODE_CHARACTERS = 2_000_000  # text that is in memory at once


class TextCache:
    def __init__(
        self,
        cache_dir: Path,
        wanted: tokenizers.TokenizerDefinition,
        sources: dict[str, Source],
        say: Callable[[str], None],
    ) -> None:
        """`sources` are the text ones, by the name of their store."""
        self._cache = cache_dir / "data"
        self._wanted = wanted
        self._sources = sources
        self._say = say
        if wanted.folder is None and not any(name.startswith("train") for name in sources):
            fix = "set spec.model.tokenizer.uri to the folder tokenizer/ of the token store"
            raise DataError(
                f"{tokenizers.FIELD}.train", wanted.vocabulary_size, "no source is text to train it on", fix
            )
        self._digests = {name: _digest(source) for name, source in sources.items()}
        identity = [
            f"format:{CONTENT_VERSION if sources else 1}",  # without text nothing is tokenised
            wanted.identity(),
            *(f"{name}:{self._digests[name]}" for name in sorted(self._digests)),
        ]
        self.fingerprint = hashlib.sha256("\n".join(identity).encode()).hexdigest()
        self._folder = self._cache / self.fingerprint[:32]

    @property
    def tokenizer_dir(self) -> Path:
        return self._folder / "tokenizer"

    @property
    def vocabulary_size(self) -> int:
        return int(read_sealed(self._folder / _FACTS)["vocabularySize"])

    def folder_of(self, source: Source, *, below: Path) -> str:
        """The store of a text source, as a path below a folder."""
        name = next(name for name, one in self._sources.items() if one is source)
        return str((self._folder / name).relative_to(below))

    def make(self) -> None:
        """Unless it is there and whole. Raises DataError."""
        with locked(self._folder):
            if self._folder.exists():
                try:
                    check_folder(self._folder)
                    for name in self._sources:
                        TokenStore.at(self._folder / name).verify_structure()
                    return
                except StoreDamaged as error:
                    self._say(f"{error.file}: {error.problem}; made anew")
                    discard(self._folder)
            self._make()

    def _make(self) -> None:
        temporary = beside(self._folder)
        temporary.mkdir(parents=True)
        if self._wanted.folder is None:
            self._say(f"training a tokenizer of {self._wanted.vocabulary_size:,} tokens")
        tokenizer, end_token, vocabulary_size = tokenizers.make(
            self._wanted, self._texts(), temporary / "tokenizer"
        )
        made_by = file_sha256(temporary / "tokenizer" / "tokenizer.json")
        for name, digest in self._digests.items():
            self._say(f"tokenising ({self._sources[name].name or name})")
            with StoreWriter(temporary / name, vocabulary_size, end_token, tokenizer=made_by) as store:
                hashed = hashlib.sha256()
                for batch in batches(document.text for document in self._sources[name].documents()):
                    for text in batch:
                        _hash_text(hashed, text)
                    for ids in tokenizers.encode(tokenizer, batch, end_token):
                        store.add(ids)
            if hashed.hexdigest() != digest:
                raise DataError(
                    "spec.data", name, "the documents changed while they were read", "start again"
                )
        facts = {
            "fingerprint": self.fingerprint,
            "vocabularySize": vocabulary_size,
            "heldout": "heldout" in self._digests,
            "files": described(
                temporary,
                [
                    *(temporary / "tokenizer").iterdir(),
                    *(temporary / name / INDEX_FILE for name in self._digests),
                ],
            ),
        }
        write_sealed(temporary / _FACTS, facts)
        temporary.rename(self._folder)

    def _texts(self) -> Iterator[str]:
        for name, source in self._sources.items():
            if name.startswith("train"):
                yield from (document.text for document in source.documents())


def check_folder(folder: Path) -> None:
    """The tokenizer and the indexes of the stores are as they were written; the indexes tell of the rest. Raises
    StoreDamaged.
    """
    try:
        facts = read_sealed(folder / _FACTS)
    except FileNotFoundError:
        raise StoreDamaged(folder / _FACTS, 0, "missing") from None
    check_files(folder, facts["files"])


def batches(texts: Iterator[str]) -> Iterator[list[str]]:
    """Texts, as many at once as are tokenised together."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= ENCODE_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _digest(source: Source) -> str:
    hashed = hashlib.sha256()
    empty = True
    for document in source.documents():
        _hash_text(hashed, document.text)
        empty = False
    if empty:
        fix = "name a file or folder that holds text (.txt, .md, .py, .jsonl, .parquet, .arrow in a folder)"
        raise DataError(source.field, source.uri, "no document in it", fix)
    return hashed.hexdigest()


def _hash_text(hashed: Any, text: str) -> None:
    data = text.encode()
    hashed.update(len(data).to_bytes(8, "little"))
    hashed.update(data)
