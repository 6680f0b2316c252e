"""Packing: no token is lost, no document is cut that need not be, and none sees another."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from tests.trainer.texts import a_store

from trainer.data import packing as packing_module
from trainer.data.blocks import IGNORED, PADDING_DOCUMENT, Block
from trainer.data.errors import DataError, StoreDamaged
from trainer.data.mixture import Stage
from trainer.data.packing import BEST_FIT, CONCATENATE, NONE, PACKINGS, Piece, best_fit, packed, pieces
from trainer.data.row_plan import Rows, make_rows, open_rows
from trainer.data.samples import Sample, Samples
from trainer.data.store import TokenStore


def all_rows(rows: Rows, length: int) -> Block:
    samples = Samples([rows], names=[""], stages=[Stage(0, (1,))], seed=0, sequence_length=length)
    return samples.block([Sample(0, number) for number in range(rows.count)], rows.count)


def lengths_of(rows: Rows) -> list[list[int]]:
    return [[span.end - span.start for span in rows.spans(row)] for row in range(rows.count)]


def test_best_fit_decreasing_fills_the_rows_of_the_known_case() -> None:
    lengths = [6, 5, 4, 3, 2, 1]
    assert [[lengths[index] for index in row] for row in best_fit(lengths, 7)] == [[6, 1], [5, 2], [4, 3]]


def test_a_document_that_is_too_long_is_cut_without_loss_and_its_rest_packed(tmp_path: Path) -> None:
    assert list(pieces([(0, 9), (9, 12)], 7)) == [Piece(0, 7), Piece(7, 2), Piece(9, 3)]
    rows = make_rows(a_store(tmp_path / "s", [9, 3]), 7, BEST_FIT, tmp_path)
    assert lengths_of(rows) == [[7], [3, 2]]  # and not 7 | 3 with two tokens lost


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize(("tokens", "kept"), [(5000, 4096), (2047, 0)])
def test_the_tokens_that_whole_blocks_would_drop_are_kept(
    packing: str, tokens: int, kept: int, tmp_path: Path
) -> None:
    store = a_store(tmp_path / "s", [tokens], vocabulary=6000)
    rows = all_rows(make_rows(store, 2048, packing, tmp_path), 2048)
    assert tokens // 2048 * 2048 == kept  # what remains of them elsewhere
    assert (rows.document_ids != PADDING_DOCUMENT).sum() == tokens
    assert (rows.labels != IGNORED).sum() == tokens - 1


@pytest.mark.parametrize("packing", PACKINGS)
def test_every_token_and_every_target_is_there_once(
    packing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_numbers = random.Random(3)
    monkeypatch.setattr(packing_module, "WINDOW", 7)
    for case in range(40):
        lengths = [random_numbers.randint(1, 40) for _ in range(random_numbers.randint(1, 30))]
        length = random_numbers.randint(1, 17)
        store = a_store(tmp_path / str(case), lengths, shard_tokens=random_numbers.choice([1, 50, 1000]))
        rows = all_rows(make_rows(store, length, packing, tmp_path), length)
        inside = rows.document_ids != PADDING_DOCUMENT
        assert np.bincount(rows.document_ids[inside], minlength=len(lengths)).tolist() == lengths
        assert sorted(rows.input_ids[inside].tolist()) == sorted(store.read(0, store.tokens).tolist())
        # Targets of a document are its own tokens but the first, in their order, however it was cut.
        assert (rows.labels != IGNORED).sum() == sum(lengths) - len(lengths)
        assert ((rows.labels != IGNORED) <= inside).all()
        _check_labels(rows, store)


def _check_labels(rows: Block, store: TokenStore) -> None:
    """Other tokens than the end token are numbers of their own, so a token tells where it stands."""
    tokens = store.read(0, store.tokens)
    place = {int(token): number for number, token in enumerate(tokens) if token != store.end_token}
    for token, label in zip(rows.input_ids.ravel().tolist(), rows.labels.ravel().tolist(), strict=True):
        if token != store.end_token:
            assert label == tokens[place[token] + 1]
        else:
            assert label == IGNORED


@pytest.mark.parametrize("packing", [BEST_FIT, NONE])
def test_only_documents_longer_than_a_row_are_cut(packing: str, tmp_path: Path) -> None:
    lengths = [random.Random(9).randint(1, 30) for _ in range(200)]
    rows = make_rows(a_store(tmp_path / "s", lengths), 16, packing, tmp_path)
    parts: dict[int, list[int]] = {}
    for row in range(rows.count):
        for span in rows.spans(row):
            parts.setdefault(span.document, []).append(span.end - span.start)
    assert all(len(parts[number]) == -(-length // 16) for number, length in enumerate(lengths))
    if packing == NONE:
        assert all(len(row) == 1 for row in lengths_of(rows))


def test_best_fit_pads_little_and_never_more_than_a_window_needs(tmp_path: Path) -> None:
    numbers = random.Random(4)
    lengths = [min(2048, int(numbers.lognormvariate(5.5, 1.0)) + 1) for _ in range(3000)]
    rows = make_rows(a_store(tmp_path / "s", lengths, vocabulary=1 << 20), 2048, BEST_FIT, tmp_path)
    assert rows.count <= 1.005 * sum(lengths) / 2048 + 1
    assert max(sum(row) for row in lengths_of(rows)) <= 2048


def test_a_window_is_packed_by_itself_so_later_documents_change_no_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packing_module, "WINDOW", 8)
    numbers = random.Random(6)
    documents, at = [], 0
    for _ in range(40):
        documents.append((at, at + numbers.randint(1, 9)))
        at = documents[-1][1]
    whole = list(packed(pieces(documents, 9), 9, BEST_FIT))
    first = list(packed(pieces(documents[:24], 9), 9, BEST_FIT))
    assert whole[: len(first)] == first


def test_a_row_is_the_same_whoever_plans_it(tmp_path: Path) -> None:
    store = a_store(tmp_path / "s", [random.Random(2).randint(1, 20) for _ in range(99)])
    one, other = (make_rows(store, 16, BEST_FIT, tmp_path / name) for name in "ab")
    assert lengths_of(one) == lengths_of(other) == lengths_of(open_rows(store, 16, BEST_FIT, tmp_path / "a"))
    assert lengths_of(one) != lengths_of(make_rows(store, 15, BEST_FIT, tmp_path / "a"))
    assert make_rows(store, 16, CONCATENATE, tmp_path / "c").count == store.sequences(16)
    assert not (tmp_path / "c").exists()


def test_ranks_only_open_a_plan_and_see_when_it_is_not_whole(tmp_path: Path) -> None:
    store = a_store(tmp_path / "s", [5, 6, 7])
    with pytest.raises(DataError, match=r"spec.data.packing: 'BestFit': not planned in .*call prepare first"):
        open_rows(store, 16, BEST_FIT, tmp_path)
    make_rows(store, 16, BEST_FIT, tmp_path)
    (file,) = (tmp_path / "rows").glob("*/starts.bin")
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(StoreDamaged, match=r"starts.bin: byte 16: 16 bytes, 24 were written"):
        open_rows(store, 16, BEST_FIT, tmp_path)
