"""A run's data made ready on a node, once: text becomes token stores, stores are opened, rows are planned.

`prepare` (agents) makes or finds everything; `prepared` (ranks) only opens it, without reading the sources again.
What is made is cached by content under a lock, and is there only when whole (`text_cache`); several nodes may share the
cache folder. The fingerprint says whether two nodes have the same data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.config.data import DataConfig
from trainer.data import tokenizer as tokenizers
from trainer.data.errors import DataError, StoreDamaged
from trainer.data.mixture import Stage
from trainer.data.packing import CONCATENATE
from trainer.data.remote import Remote, is_remote
from trainer.data.remote_store import copy_folder, fetch_skeleton, open_copy
from trainer.data.row_plan import make_rows, open_rows
from trainer.data.samples import Samples
from trainer.data.sealed import read_sealed, write_sealed
from trainer.data.shards import file_sha256
from trainer.data.sources import TOKENS, Source, file_path, spec_sources
from trainer.data.store import TokenStore, read_index
from trainer.data.store_format import INDEX_FILE
from trainer.data.text_cache import TextCache, check_folder

Say = Callable[[str], None]
REQUEST_VERSION = 3  # of what `prepared` looks up


@dataclass(frozen=True)
class PreparedData:
    stores: tuple[TokenStore, ...]  # by source
    heldout: TokenStore | None
    tokenizer_dir: Path
    vocabulary_size: int  # rows of the embedding
    fingerprint: str

    @property
    def train(self) -> TokenStore:
        """The first source's store."""
        return self.stores[0]


@dataclass(frozen=True)
class _Found:
    """What `prepare` leaves for `prepared`: JSON, kept under a name that follows from the spec."""

    fingerprint: str
    tokenizer: str  # folder, below the cache
    vocabulary_size: int
    stores: tuple[str, ...]  # folder below the cache, or an identity for a store that is read where it is
    heldout: str | None


def prepare(spec: dict[str, Any], cache_dir: Path, say: Say) -> PreparedData:
    """Make what `spec` needs unless it is there. `say` gets progress for people. Raises DataError, SourceAway,
    StoreDamaged.
    """
    wanted = tokenizers.definition(spec)
    train, heldout = (spec_sources(spec, part, cache_dir) for part in ("sources", "validation"))
    if not train:
        raise DataError("spec.data.sources", [], "nothing to train on", "name at least one source")
    say("reading the documents")
    given = {
        source.field: _identity(source, cache_dir) for source in (*train, *heldout) if source.format == TOKENS
    }
    made = TextCache(cache_dir, wanted, _store_names(train, heldout), say)
    made.make()
    found = _Found(
        fingerprint=_fingerprint(made.fingerprint, list(given.items())),
        tokenizer=str(made.tokenizer_dir.relative_to(cache_dir)),
        vocabulary_size=made.vocabulary_size,
        stores=tuple(given.get(source.field) or made.folder_of(source, below=cache_dir) for source in train),
        heldout=next((given.get(one.field) or made.folder_of(one, below=cache_dir) for one in heldout), None),
    )
    _remember(cache_dir, spec, found)
    data = _open(spec, cache_dir, found)
    _check_tokenizer(spec, data, file_sha256(data.tokenizer_dir / "tokenizer.json"))
    for store in (*data.stores, *((data.heldout,) if data.heldout else ())):
        store.verify_structure()
    packing = spec["data"].get("packing") or CONCATENATE
    for store in data.stores:
        make_rows(store, spec["training"]["sequenceLength"], packing, cache_dir)
    tokens, documents = (
        sum(getattr(store, kind) for store in data.stores) for kind in ("tokens", "documents")
    )
    say(f"{tokens:,} tokens in {documents:,} documents")
    return data


def prepared(spec: dict[str, Any], cache_dir: Path) -> PreparedData:
    """Open what `prepare` made last for this spec. Raises DataError when it did not, StoreDamaged."""
    file = _request_file(cache_dir, spec)
    try:
        found = read_sealed(file)
    except FileNotFoundError:
        problem = f"not prepared in {cache_dir}"
        raise DataError(
            "spec.data", _uris(spec), problem, "call prepare first, with the same cache folder"
        ) from None
    check_folder((cache_dir / found["tokenizer"]).parent)
    return _open(spec, cache_dir, _Found(**found))


def samples_of(data: PreparedData, config: DataConfig, sequence_length: int, cache_dir: Path) -> Samples:
    """The run's sequence of samples, over rows that `prepare` planned. Raises DataError, StoreDamaged."""
    return Samples(
        [open_rows(store, sequence_length, config.packing, cache_dir) for store in data.stores],
        names=config.sources,
        # A stage begins with the first sequence that is not before it.
        stages=[Stage(-(-one.after_tokens // sequence_length), one.weights) for one in config.stages],
        seed=config.seed,
        sequence_length=sequence_length,
    )


def _store_names(train: list[Source], heldout: list[Source]) -> dict[str, Source]:
    """Text sources by the name of their store in the cache. One source alone has the name it always had."""
    names = ["train"] if len(train) == 1 else [f"train-{number}" for number in range(len(train))]
    named = dict(zip([*names, *("heldout" for _ in heldout)], [*train, *heldout], strict=True))
    return {name: source for name, source in named.items() if source.format != TOKENS}


def _identity(source: Source, cache_dir: Path) -> str:
    """Of a store that is somewhere already: what it holds. Raises DataError, SourceAway, StoreDamaged."""
    if is_remote(source.uri):
        return fetch_skeleton(Remote(source.field, source.uri, cache_dir), cache_dir).identity
    folder = file_path(source.uri, source.field)
    if not (folder / INDEX_FILE).is_file():
        fix = "name the folder that python -m trainer.data.write made, or use format: Text"
        raise DataError(source.field, source.uri, f"there is no token store: no {folder / INDEX_FILE}", fix)
    return read_index(folder).identity


def _open(spec: dict[str, Any], cache_dir: Path, found: _Found) -> PreparedData:
    train, heldout = (spec_sources(spec, part, cache_dir) for part in ("sources", "validation"))
    return PreparedData(
        stores=tuple(
            _open_store(source, where, cache_dir) for source, where in zip(train, found.stores, strict=True)
        ),
        heldout=_open_store(heldout[0], found.heldout, cache_dir) if found.heldout else None,
        tokenizer_dir=cache_dir / found.tokenizer,
        vocabulary_size=found.vocabulary_size,
        fingerprint=found.fingerprint,
    )


def _open_store(source: Source, where: str, cache_dir: Path) -> TokenStore:
    if source.format != TOKENS:
        return TokenStore.at(cache_dir / where)
    if is_remote(source.uri):
        if not copy_folder(cache_dir, where).exists():
            problem = f"not prepared in {cache_dir}"
            raise DataError(
                source.field, source.uri, problem, "call prepare first, with the same cache folder"
            )
        return open_copy(Remote(source.field, source.uri, cache_dir, patient=True), cache_dir, where)
    folder = file_path(source.uri, source.field)
    store = TokenStore.at(folder)
    if store.identity != where:
        raise StoreDamaged(folder / INDEX_FILE, 0, "another store than the one that was prepared")
    return store


def _check_tokenizer(spec: dict[str, Any], data: PreparedData, tokenizer: str) -> None:
    """Token ids mean nothing but to the tokenizer that made them."""
    for part, stores in (("sources", data.stores), ("validation", (data.heldout,) if data.heldout else ())):
        for number, store in enumerate(stores):
            field, uri = f"spec.data.{part}[{number}].uri", spec["data"][part][number]["uri"]
            index = store.index
            if index.tokenizer and index.tokenizer != tokenizer:
                raise DataError(
                    field,
                    uri,
                    "its tokens were made by another tokenizer than the run's "
                    f"(tokenizer.json {index.tokenizer[:12]}…, the run's is {tokenizer[:12]}…)",
                    "set spec.model.tokenizer.uri to the folder tokenizer/ of the store",
                )
            if index.vocabulary_size > data.vocabulary_size:
                raise DataError(
                    field,
                    uri,
                    f"its tokens are of a vocabulary of {index.vocabulary_size}, the run's has {data.vocabulary_size}",
                    "use the tokenizer that made the store",
                )
            if index.end_token != data.train.end_token:
                problem = f"documents end with token {index.end_token}, those of sources[0] with {data.train.end_token}"
                raise DataError(field, uri, problem, "write the stores with one tokenizer")


def _fingerprint(made: str, given: list[tuple[str, str]]) -> str:
    if not given:
        return made
    return hashlib.sha256(
        "\n".join([made, *(f"{field}:{identity}" for field, identity in given)]).encode()
    ).hexdigest()


def _request_file(cache_dir: Path, spec: dict[str, Any]) -> Path:
    wanted = [REQUEST_VERSION, spec["data"], spec["model"].get("tokenizer")]
    request = json.dumps(wanted, sort_keys=True)
    return cache_dir / "requests" / f"{hashlib.sha256(request.encode()).hexdigest()[:32]}.json"


def _remember(cache_dir: Path, spec: dict[str, Any], found: _Found) -> None:
    file = _request_file(cache_dir, spec)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_sealed(file, found.__dict__)


def _uris(spec: dict[str, Any]) -> list[str]:
    return [entry["uri"] for part in ("sources", "validation") for entry in spec["data"].get(part) or []]
