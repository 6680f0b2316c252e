"""The documents that all contestants train on: a token store for ours, and what is read from it for the others.

Token ids are random, because speed does not depend on them; lengths are log-normal, because speed does on these.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models

from benchmarks.throughput.cases import Case
from trainer.data.store import TokenStore
from trainer.data.store_writer import StoreWriter

TOKENS = 4_000_000
TOKENIZER = "tokenizer"  # folder, which a run needs to have
END_TOKEN = "<|endoftext|>"


def write_corpus(case: Case, folder: Path) -> None:
    write_made(
        folder,
        case.vocabulary,
        tokens=TOKENS,
        median=case.median_document,
        spread=case.document_spread,
        longest=case.sequence_length if case.padded else 20 * case.sequence_length,
    )


def write_made(
    folder: Path, vocabulary: int, *, tokens: int, median: float, spread: float, longest: int
) -> None:
    """At least `tokens` in documents of log-normal length, with a tokenizer of as many words beside them."""
    numbers, lengths = np.random.default_rng(1), random.Random(2)
    with StoreWriter(folder, vocabulary, 0) as writer:
        written = 0
        while written < tokens:
            length = min(longest, max(8, round(lengths.lognormvariate(np.log(median), spread))))
            writer.add(numbers.integers(1, vocabulary, length - 1).tolist())
            written += length
    words = {END_TOKEN: 0} | {f"word{number}": number for number in range(1, vocabulary)}
    (folder / TOKENIZER).mkdir()
    Tokenizer(models.WordLevel(words, unk_token=END_TOKEN)).save(str(folder / TOKENIZER / "tokenizer.json"))


def blocks(case: Case, folder: Path) -> torch.Tensor:
    """The stream of documents, cut at the sequence length, in rows; in memory, as int64."""
    store = TokenStore.at(folder)
    whole = store.tokens // case.sequence_length
    stream = store.read(0, whole * case.sequence_length)
    return torch.from_numpy(stream.astype(np.int64)).view(whole, case.sequence_length)


def documents(folder: Path) -> list[torch.Tensor]:
    store = TokenStore.at(folder)
    bounds = [int(start) for starts in store.document_starts() for start in starts]
    return [torch.from_numpy(store.read(at, end).astype(np.int64)) for at, end in _pairs(bounds)]


def documents_a_step(case: Case, folder: Path) -> int:
    """How many documents have the tokens of one full global batch, on average."""
    lengths = [len(document) for document in documents(folder)]
    return round(case.global_batch * case.sequence_length * len(lengths) / sum(lengths))


def _pairs(bounds: list[int]) -> Iterator[tuple[int, int]]:
    """Neighbours; a shard ends where the next begins, which is no document."""
    return ((at, end) for at, end in pairwise(bounds) if end > at)
