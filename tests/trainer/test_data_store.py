"""Token stores: every token is read once, as it was written, or its file and offset are named."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from tests.trainer.texts import END, a_store

from trainer.data.blocks import IGNORED, PADDING_DOCUMENT, block
from trainer.data.errors import StoreDamaged
from trainer.data.store import Span, TokenStore
from trainer.data.store_format import BLOCK_BYTES
from trainer.data.store_writer import StoreWriter


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
    assert rows.position_ids.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 0, 1]]


@pytest.mark.parametrize("tokens, length, expected", [(5000, 2048, 3), (2047, 2048, 1), (4096, 2048, 2)])
def test_the_remainder_of_the_corpus_is_kept_as_a_padded_sample(
    tmp_path: Path, tokens: int, length: int, expected: int
) -> None:
    store = a_store(tmp_path / "s", [tokens], vocabulary=6000)
    assert store.sequences(length) == expected
    rows = block(store, range(expected), expected, length)
    assert (rows.document_ids != PADDING_DOCUMENT).sum() == tokens


def test_every_token_is_read_once_whatever_the_documents_the_shards_and_the_length(tmp_path: Path) -> None:
    random_numbers = random.Random(5)
    for case in range(40):
        lengths = [random_numbers.randint(2, 30) for _ in range(random_numbers.randint(1, 12))]
        length = random_numbers.randint(1, 17)
        store = a_store(tmp_path / str(case), lengths, shard_tokens=random_numbers.choice([1, 20, 1000]))
        rows = block(store, range(store.sequences(length)), store.sequences(length), length)
        inside = rows.document_ids != PADDING_DOCUMENT
        assert rows.input_ids[inside].tolist() == store.read(0, store.tokens).tolist()
        assert (rows.labels != IGNORED).sum() == sum(lengths) - len(lengths)
        assert np.bincount(rows.document_ids[inside]).tolist() == lengths


def test_shards_are_one_store_and_never_cut_a_document(tmp_path: Path) -> None:
    lengths = [7, 3, 9, 25, 2, 2]
    whole = a_store(tmp_path / "whole", lengths)
    cut = a_store(tmp_path / "cut", lengths, shard_tokens=11)
    assert [shard.documents for shard in cut.index.shards] == [2, 1, 1, 2]
    assert cut.starts.tolist() == whole.starts.tolist() == [0, 7, 10, 19, 44, 46, 48]
    for start in range(49):
        for end in range(start, 50):
            assert cut.read(start, end).tolist() == whole.read(start, end).tolist()
            assert cut.spans(start, end) == whole.spans(start, end)
    assert cut.spans(8, 21) == [Span(1, 8, 10, False), Span(2, 10, 19, False), Span(3, 19, 21, True)]


def test_the_counts_of_the_index_are_those_of_its_shards(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "s", 1000, END, shard_tokens=10) as writer:
        for length in (4, 9, 2):
            writer.add([1] * length)
        writer.drop("empty")
        writer.drop("empty")
    index = TokenStore.at(tmp_path / "s").index
    assert index.tokens == sum(shard.tokens for shard in index.shards) == 4 + 9 + 2 + 3
    assert (index.documents_read, index.documents, index.dropped) == (5, 3, {"empty": 2})
    content = json.loads((tmp_path / "s" / "index.json").read_text())
    for changes, message in (
        ({"documentsRead": 6}, "3 documents kept \\+ 2 dropped are not the 6 that were read"),
        ({"tokens": 19}, "19 tokens, but its shards hold 18"),
        ({"shards": content["shards"][:1]}, "18 tokens, but its shards hold 5"),
    ):
        (tmp_path / "s" / "index.json").write_text(json.dumps(content | changes))
        with pytest.raises(StoreDamaged, match=message):
            TokenStore.at(tmp_path / "s")


def test_a_large_vocabulary_is_stored_in_four_bytes(tmp_path: Path) -> None:
    store = a_store(tmp_path / "s", [3], vocabulary=1 << 17)
    assert (tmp_path / "s" / "00000.tokens").stat().st_size == 3 * 4
    assert store.read(0, 3).tolist() == [1, 2, END]


def test_a_token_that_the_vocabulary_has_no_room_for_is_refused(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "s", 1000, END) as writer:
        writer.add([1])
        with pytest.raises(OverflowError):
            writer.add([1 << 16])


@pytest.mark.parametrize("file, size", [("00001.tokens", 14), ("00001.documents", 8), ("00001.checksums", 0)])
def test_a_truncated_shard_is_refused_with_file_and_offset(tmp_path: Path, file: str, size: int) -> None:
    a_store(tmp_path / "s", [100, 100], shard_tokens=100)
    path = tmp_path / "s" / file
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(StoreDamaged, match=rf"{file}: byte {size}: ends here, but \d+ bytes") as raised:
        TokenStore.at(tmp_path / "s")
    assert raised.value.offset == size


def _with_three_blocks(folder: Path) -> list[int]:
    ids = [number % 1000 for number in range(BLOCK_BYTES + 100)]
    with StoreWriter(folder, 1000, END) as writer:
        writer.add(ids)
    return [*ids, END]


def test_a_flipped_bit_is_found_when_it_is_read_and_its_block_named(tmp_path: Path) -> None:
    ids = _with_three_blocks(tmp_path / "s")
    file = tmp_path / "s" / "00000.tokens"
    data = bytearray(file.read_bytes())
    data[BLOCK_BYTES + 777] ^= 4
    file.write_bytes(data)
    store = TokenStore.at(tmp_path / "s")
    half = BLOCK_BYTES // 2
    assert store.read(0, half).tolist() == ids[:half]
    assert store.read(2 * half, len(ids)).tolist() == ids[2 * half :]
    for read in (lambda: store.read(half - 1, half + 1), store.verify, lambda: store.read(half, half + 1)):
        with pytest.raises(
            StoreDamaged, match=r"00000.tokens: byte 65536: the 65536 bytes from here"
        ) as raised:
            read()
        assert (raised.value.file, raised.value.offset) == (str(file), BLOCK_BYTES)


@pytest.mark.parametrize("file", ["00000.documents", "00000.checksums"])
def test_a_flipped_bit_beside_the_tokens_is_found_before_training(tmp_path: Path, file: str) -> None:
    a_store(tmp_path / "s", [100, 40])
    path = tmp_path / "s" / file
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    store = TokenStore.at(tmp_path / "s")
    with pytest.raises(StoreDamaged, match=f"{file}: byte 0: its sha256 is not that of the index"):
        store.verify_structure()


def test_an_unfinished_or_foreign_store_is_refused(tmp_path: Path) -> None:
    a_store(tmp_path / "s", [5])
    index = tmp_path / "s" / "index.json"
    content = json.loads(index.read_text())
    for text, message in (
        (json.dumps(content | {"formatVersion": 99}), "format 99, this reads 1 and 2"),
        (json.dumps(content | {"dtype": "<f4"}), "dtype '<f4'"),
        (json.dumps({"formatVersion": 2}), "not an index of format 2"),
        ("[]", "format None"),
        ("{", "not JSON"),
    ):
        index.write_text(text)
        with pytest.raises(StoreDamaged, match=message):
            TokenStore.at(tmp_path / "s")
    index.unlink()
    with pytest.raises(StoreDamaged, match="not completed"):
        TokenStore.at(tmp_path / "s")


def test_a_store_without_documents_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one document"), StoreWriter(tmp_path / "s", 1000, END):
        pass
    assert not (tmp_path / "s" / "index.json").exists()
