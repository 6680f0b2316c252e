"""The format of a token store: what its index says, and how the bytes beside it are cut and checked.

docs/token-store.md is the description for others; this is the one place in code that knows names and versions.
Version 1 (one shard, hashes of 4 MiB in the index) is read and not written any more. Used by the writer and by
the reader. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trainer.data.errors import StoreDamaged

FORMAT_VERSION = 2
READABLE = (1, 2)
INDEX_FILE = "index.json"
BLOCK_BYTES = 64 << 10  # of tokens, with one CRC-32: what reading a sample has to check besides it
_V1_BLOCK_BYTES = 4 << 20
_DTYPES = ("<u2", "<u4")


@dataclass(frozen=True)
class FileIndex:
    """A file of a shard, as it was written."""

    name: str
    bytes: int
    sha256: str = ""  # version 1 has hashes of blocks instead


@dataclass(frozen=True)
class ShardIndex:
    tokens: int
    documents: int
    token_file: FileIndex
    document_file: FileIndex  # 8 bytes each: where a document starts in the shard, then the shard's end
    checksum_file: FileIndex | None  # 4 bytes each: CRC-32 of a block of the token file; None in version 1
    block_hashes: tuple[str, ...] = ()  # version 1: sha256 of each block of the token file
    document_hashes: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[FileIndex, ...]:
        found = (self.token_file, self.document_file, self.checksum_file)
        return tuple(file for file in found if file is not None)


@dataclass(frozen=True)
class StoreIndex:
    version: int
    dtype: str
    tokens: int
    documents: int
    end_token: int
    vocabulary_size: int  # token ids are below it; 0: not known (version 1)
    tokenizer: str  # sha256 of the tokenizer.json that made it; "" when not known
    block_bytes: int
    shards: tuple[ShardIndex, ...]
    identity: str  # sha256 of the index: of all content, as it holds the hashes of all files
    documents_read: int = 0
    dropped: Mapping[str, int] | None = None  # reason -> documents that were read and not kept


def parse_index(text: bytes, where: object) -> StoreIndex:
    """The index of a store. `where` names it in errors. Raises StoreDamaged."""
    try:
        data: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise StoreDamaged(where, getattr(error, "pos", 0), "not JSON") from error
    version = data.get("formatVersion") if isinstance(data, dict) else None
    if version not in READABLE:
        raise StoreDamaged(where, 0, f"format {version}, this reads {' and '.join(map(str, READABLE))}")
    identity = hashlib.sha256(text).hexdigest()
    try:
        index = _version_1(data, identity) if version == 1 else _version_2(data, identity)
    except (KeyError, TypeError) as error:
        raise StoreDamaged(where, 0, f"not an index of format {version}: {error!r}") from error
    _check_sums(index, where)
    return index


def _version_1(data: dict[str, Any], identity: str) -> StoreIndex:
    files = data["files"]
    tokens, documents = files["tokens.bin"], files["documents.bin"]
    shard = ShardIndex(
        tokens=data["tokens"],
        documents=data["documents"],
        token_file=FileIndex("tokens.bin", tokens["bytes"]),
        document_file=FileIndex("documents.bin", documents["bytes"]),
        checksum_file=None,
        block_hashes=tuple(tokens["blocks"]),
        document_hashes=tuple(documents["blocks"]),
    )
    return StoreIndex(
        version=1,
        dtype=data["dtype"],
        tokens=shard.tokens,
        documents=shard.documents,
        end_token=data["endToken"],
        vocabulary_size=0,
        tokenizer="",
        block_bytes=_V1_BLOCK_BYTES,
        shards=(shard,),
        identity=identity,
        documents_read=shard.documents,
    )


def _version_2(data: dict[str, Any], identity: str) -> StoreIndex:
    shards = tuple(
        ShardIndex(
            tokens=shard["tokens"],
            documents=shard["documents"],
            token_file=FileIndex(**shard["tokenFile"]),
            document_file=FileIndex(**shard["documentFile"]),
            checksum_file=FileIndex(**shard["checksumFile"]),
        )
        for shard in data["shards"]
    )
    return StoreIndex(
        version=2,
        dtype=data["dtype"],
        tokens=data["tokens"],
        documents=data["documents"],
        end_token=data["endToken"],
        vocabulary_size=data["vocabularySize"],
        tokenizer=data["tokenizer"],
        block_bytes=data["blockBytes"],
        shards=shards,
        identity=identity,
        documents_read=data["documentsRead"],
        dropped=data["dropped"],
    )


def index_text(index: StoreIndex) -> bytes:
    """The index file of a store of this version; `identity` is not a part of it."""
    data = {
        "formatVersion": FORMAT_VERSION,
        "dtype": index.dtype,
        "blockBytes": index.block_bytes,
        "vocabularySize": index.vocabulary_size,
        "endToken": index.end_token,
        "tokenizer": index.tokenizer,
        "tokens": index.tokens,
        "documents": index.documents,
        "documentsRead": index.documents_read,
        "dropped": dict(index.dropped or {}),
        "shards": [
            {
                "tokens": shard.tokens,
                "documents": shard.documents,
                "tokenFile": asdict(shard.token_file),
                "documentFile": asdict(shard.document_file),
                "checksumFile": asdict(shard.checksum_file) if shard.checksum_file else None,
            }
            for shard in index.shards
        ],
    }
    return (json.dumps(data, indent=1) + "\n").encode()


def _check_sums(index: StoreIndex, where: object) -> None:
    """Counts that do not add up are the sign of an index that was put together by hand, or of a lost shard."""
    if index.dtype not in _DTYPES:
        raise StoreDamaged(where, 0, f"dtype {index.dtype!r}, not one of {', '.join(_DTYPES)}")
    if index.block_bytes < 4 or index.block_bytes % 4:
        raise StoreDamaged(where, 0, f"blocks of {index.block_bytes} bytes, not a multiple of 4")
    for name, whole, parts in (
        ("tokens", index.tokens, sum(shard.tokens for shard in index.shards)),
        ("documents", index.documents, sum(shard.documents for shard in index.shards)),
    ):
        if whole != parts:
            raise StoreDamaged(where, 0, f"{whole} {name}, but its shards hold {parts}")
    lost = sum((index.dropped or {}).values())
    if index.documents + lost != index.documents_read:
        raise StoreDamaged(
            where,
            0,
            f"{index.documents} documents kept + {lost} dropped are not the {index.documents_read} that were read",
        )
    if index.tokens < 1:
        raise StoreDamaged(where, 0, "a store without tokens")
    size = int(index.dtype[-1])
    for shard in index.shards:
        for file, wanted in (
            (shard.token_file, size * shard.tokens),
            (shard.document_file, 8 * shard.documents + 8),
        ):
            if file.bytes != wanted:
                raise StoreDamaged(where, 0, f"{file.name} has {file.bytes} bytes, its counts need {wanted}")
