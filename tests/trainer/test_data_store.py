from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from tests.trainer.texts import END, a_store

from trainer.data import store as store_module
from trainer.data.blocks import IGNORED, PADDING_DOCUMENT, block
from trainer.data.errors import StoreDamaged
from trainer.data.store import StoreWriter, TokenStore

BLOCK_BYTES = 4096


def test_two_documents_in_a_row_have_the_targets_they_would_have_alone(tmp_path: Path) -> None:
    store = a_store(tmp_path / "s", [3, 5])
    row = block(store, [0], 1, 8)
    assert row.input_ids.tolist() == [[1, 2, END, 3, 4, 5, 6, END]]
    assert row.labels.tolist() == [[2, END, IGNORED, 4, 5, 6, END, IGNORED]]
    assert (row.labels != IGNORED).sum() == (3 - 1) + (5 - 1)
    assert row.document_ids.tolist() == [[0, 0, 0, 1, 1, 1, 1, 1]]
    assert row.position_ids.tolist() == [[0, 1, 2, 0, 1, 2, 3, 4]]


def test_a_document_that_goes_on_in_the_next_sample_loses_no_target(tmp_path: Path) -> None:
    store = a_store(tmp_path / "s", [10])
    rows = block(store, [0, 1, 2], 3, 4)
    assert rows.input_ids.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8], [9, END, END, END]]
    assert rows.labels.tolist() == [[2, 3, 4, 5], [6, 7, 8, 9], [END, *[IGNORED] * 3]]
    assert rows.document_ids[2].tolist() == [0, 0, PADDING_DOCUMENT, PADDING_DOCUMENT]
    assert rows.position_ids[1].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("tokens, length, expected", [(5000, 2048, 3), (2047, 2048, 1), (4096, 2048, 2)])
def test_the_remainder_of_the_corpus_is_kept_as_a_padded_sample(
    tmp_path: Path, tokens: int, length: int, expected: int
) -> None:
    store = a_store(tmp_path / "s", [tokens], vocabulary=6000)
    assert store.sequences(length) == expected
    rows = block(store, range(expected), expected, length)
    assert (rows.document_ids != PADDING_DOCUMENT).sum() == tokens


def test_every_token_is_read_once_whatever_the_documents_and_the_length(tmp_path: Path) -> None:
    random_numbers = random.Random(5)
    for case in range(25):
        lengths = [random_numbers.randint(2, 30) for _ in range(random_numbers.randint(1, 12))]
        length = random_numbers.randint(1, 17)
        store = a_store(tmp_path / str(case), lengths)
        rows = block(store, range(store.sequences(length)), store.sequences(length), length)
        inside = rows.document_ids != PADDING_DOCUMENT
        assert rows.input_ids[inside].tolist() == store.read(0, store.tokens).tolist()
        assert (rows.labels != IGNORED).sum() == sum(lengths) - len(lengths)
        assert np.bincount(rows.document_ids[inside]).tolist() == lengths


def test_a_large_vocabulary_is_stored_in_four_bytes(tmp_path: Path) -> None:
    store = a_store(tmp_path / "s", [3], vocabulary=1 << 17)
    assert (tmp_path / "s" / "tokens.bin").stat().st_size == 3 * 4
    assert store.read(0, 3).tolist() == [1, 2, END]


def test_a_truncated_store_is_refused_with_file_and_offset(tmp_path: Path) -> None:
    a_store(tmp_path / "s", [100])
    file = tmp_path / "s" / "tokens.bin"
    file.write_bytes(file.read_bytes()[:150])
    with pytest.raises(StoreDamaged, match=r"tokens.bin: byte 150: ends here, but 200 bytes") as raised:
        TokenStore(tmp_path / "s")
    assert raised.value.offset == 150


def test_a_flipped_bit_is_found_and_its_block_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "BLOCK_BYTES", BLOCK_BYTES)
    with StoreWriter(tmp_path / "s", 1000, END) as writer:
        writer.add([number % 1000 for number in range(BLOCK_BYTES)])  # two blocks and a bit
    store = TokenStore(tmp_path / "s")
    store.verify()
    data = bytearray((tmp_path / "s" / "tokens.bin").read_bytes())
    data[BLOCK_BYTES + 77] ^= 4
    (tmp_path / "s" / "tokens.bin").write_bytes(data)
    with pytest.raises(StoreDamaged) as raised:
        TokenStore(tmp_path / "s").verify()
    assert raised.value.offset == BLOCK_BYTES


def test_an_unfinished_or_foreign_store_is_refused(tmp_path: Path) -> None:
    a_store(tmp_path / "s", [5])
    index = tmp_path / "s" / "index.json"
    content = json.loads(index.read_text())
    index.write_text(json.dumps(content | {"formatVersion": 99}))
    with pytest.raises(StoreDamaged, match="format 99"):
        TokenStore(tmp_path / "s")
    index.write_text("{")
    with pytest.raises(StoreDamaged, match="not JSON"):
        TokenStore(tmp_path / "s")
    index.unlink()
    with pytest.raises(StoreDamaged, match="not completed"):
        TokenStore(tmp_path / "s")
