"""From samples to rows of inputs and labels, with documents kept apart.

The one place that says which token is a target of which: a label is the next token of the same document, and
-100 where there is none (the end of a document, of the corpus, or padding). So the targets are all tokens of
a document but its first, and the end token is learned. Used by the ranks' reader and by `evaluate`. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainer.data.store import TokenStore

IGNORED = -100
PADDING_DOCUMENT = -1


@dataclass(frozen=True)
class Block:
    """Rows of one micro-batch, all int64 [rows, S]; `labels` are already shifted."""

    input_ids: np.ndarray
    labels: np.ndarray
    document_ids: np.ndarray  # number of the document in the store; -1 at padding
    position_ids: np.ndarray  # from 0 at each document's start, and at the row's start


def block(store: TokenStore, samples: Sequence[int], rows: int, sequence_length: int) -> Block:
    """`samples` as the first rows, padding rows after them up to `rows`."""
    shape = (rows, sequence_length)
    input_ids = np.full(shape, store.end_token, dtype=np.int64)
    labels = np.full(shape, IGNORED, dtype=np.int64)
    document_ids = np.full(shape, PADDING_DOCUMENT, dtype=np.int64)
    for row, sample in enumerate(samples):
        tokens = store.sample(sample, sequence_length)
        start = sample * sequence_length
        documents = np.searchsorted(store.starts, np.arange(start, start + len(tokens)), side="right") - 1
        inside = min(sequence_length, len(tokens))
        input_ids[row, :inside] = tokens[:inside]
        document_ids[row, :inside] = documents[:inside]
        targets = len(tokens) - 1
        same = documents[1:] == documents[:-1]
        labels[row, :targets] = np.where(same, tokens[1:], IGNORED)
    return Block(input_ids, labels, document_ids, _positions(document_ids))


def _positions(document_ids: np.ndarray) -> np.ndarray:
    columns = np.arange(document_ids.shape[1], dtype=np.int64)
    first = np.ones_like(document_ids, dtype=bool)
    first[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    return columns - np.maximum.accumulate(np.where(first, columns, 0), axis=1)
