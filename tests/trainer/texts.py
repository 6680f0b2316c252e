"""Builders for data tests: specs over small texts, and stores with documents of given lengths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainer.data.store import TokenStore
from trainer.data.store_writer import SHARD_TOKENS, StoreWriter

END = 0


def a_spec(
    *uris: str, heldout: tuple[str, ...] = (), vocabulary: int = 300, tokenizer: str | None = None
) -> dict[str, Any]:
    """A resolved spec over these sources."""
    golden = Path(__file__).parent.parent / "golden" / "resolved-spec.json"
    spec: dict[str, Any] = json.loads(golden.read_text())
    train = None if tokenizer else {"vocabularySize": vocabulary}
    spec["model"]["tokenizer"] = {"uri": tokenizer, "train": train}
    for part, names in (("sources", uris), ("validation", heldout)):
        spec["data"][part] = [{"name": f"n{i}", "uri": uri, "format": "Text"} for i, uri in enumerate(names)]
    return spec


def a_store(
    folder: Path, lengths: list[int], vocabulary: int = 1000, *, shard_tokens: int = SHARD_TOKENS
) -> TokenStore:
    """Documents of `lengths` tokens, end token included; every other token is a number of its own."""
    with StoreWriter(folder, vocabulary, END, shard_tokens=shard_tokens) as writer:
        following = 1
        for length in lengths:
            writer.add(list(range(following, following + length - 1)))
            following += length - 1
    return TokenStore.at(folder)


def quiet(_: str) -> None:
    """A `say` for tests."""
