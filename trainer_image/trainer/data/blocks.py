"""From rows of spans to rows of inputs and labels, with documents kept apart.

The one place that says which token is a target of which: a label is the next token of the same document, and
-100 where there is none (the end of a document, of the corpus, or padding). So the targets are all tokens of
a document but its first, wherever it was cut, and the end token is learned. Used by the ranks' reader and by
`evaluate`. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainer.data.row_plan import ConcatenatedRows
from trainer.data.store import Span, TokenStore

IGNORED = -100
PADDING_DOCUMENT = -1


@dataclass(frozen=True)
class Block:
    """Rows of one micro-batch, all int64 [rows, S]; `labels` are already shifted."""

    input_ids: np.ndarray
    labels: np.ndarray
    document_ids: np.ndarray  # number of the document in its store; -1 at padding
    position_ids: np.ndarray  # from 0 at each document's start, and at the row's start


def empty_block(rows: int, sequence_length: int, end_token: int) -> Block:
    """Rows of padding only: they weigh nothing."""
    shape = (rows, sequence_length)
    return Block(
        np.full(shape, end_token, dtype=np.int64),
        np.full(shape, IGNORED, dtype=np.int64),
        np.full(shape, PADDING_DOCUMENT, dtype=np.int64),
        np.tile(np.arange(sequence_length, dtype=np.int64), (rows, 1)),
    )


def fill_row(block: Block, row: int, store: TokenStore, spans: Sequence[Span]) -> None:
    """Put `spans`, one behind the other, into a row of padding."""
    at = 0
    for span in spans:
        tokens = store.read(span.start, span.end + int(span.goes_on))
        length = span.end - span.start
        place = slice(at, at + length)
        block.input_ids[row, place] = tokens[:length]
        block.labels[row, at : at + len(tokens) - 1] = tokens[1:]
        block.document_ids[row, place] = span.document
        block.position_ids[row, place] = np.arange(length)
        at += length
    block.position_ids[row, at:] = np.arange(block.position_ids.shape[1] - at)


def block(store: TokenStore, samples: Sequence[int], rows: int, sequence_length: int) -> Block:
    """`samples` of a store that is read from its first to its last token; padding rows up to `rows`."""
    made = empty_block(rows, sequence_length, store.end_token)
    concatenated = ConcatenatedRows(store, sequence_length)
    for row, sample in enumerate(samples):
        fill_row(made, row, store, concatenated.spans(sample))
    return made
