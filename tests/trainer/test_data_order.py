from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest
from tests.trainer.texts import a_store

from trainer.data.batches import BatchReader, read_log, sample_hash
from trainer.data.blocks import IGNORED
from trainer.data.order import SampleOrder
from trainer.data.samples import Samples
from trainer.data.store import TokenStore


@pytest.mark.parametrize("samples", [1, 2, 3, 5, 16, 17, 60, 1000, 4097])
def test_each_data_epoch_is_a_permutation_of_its_own(samples: int) -> None:
    order = SampleOrder(samples, seed=17)
    epochs = [order.ids(epoch * samples, samples) for epoch in range(3)]
    assert all(sorted(ids) == list(range(samples)) for ids in epochs)
    if samples >= 16:
        assert epochs[0] != epochs[1] != epochs[2]


def test_the_order_is_a_pure_function_of_seed_and_position() -> None:
    whole = SampleOrder(60, seed=3).ids(0, 200)
    again = SampleOrder(60, seed=3)
    assert [again.ids(position, 1)[0] for position in reversed(range(200))] == whole[::-1]
    assert again.ids(55, 70) == whole[55:125]
    assert SampleOrder(60, seed=4).ids(0, 60) != whole[:60]


def test_the_order_of_a_run_under_way_never_changes_with_the_software() -> None:
    assert SampleOrder(1000, seed=17).ids(0, 8) == [466, 956, 671, 195, 79, 602, 569, 613]
    assert SampleOrder(1000, seed=17).ids(998, 4) == [256, 226, 576, 862]


def test_the_order_looks_random() -> None:
    ids = SampleOrder(10_000, seed=17).ids(0, 10_000)
    steps = sum(abs(a - b) for a, b in pairwise(ids)) / 9_999
    assert 3_200 < steps < 3_470  # a third of the samples
    assert 4_700 < sum(ids[:500]) / 500 < 5_300


def test_a_large_corpus_needs_no_table() -> None:
    ids = SampleOrder(3_000_000_000, seed=1).ids(5_999_999_998, 4)
    assert len(set(ids)) == 4
    assert all(0 <= sample < 3_000_000_000 for sample in ids)


def readers(
    store: TokenStore, shape: tuple[int, int, int], batch: int, log: Path | None = None
) -> list[BatchReader]:
    data, rows, accumulation = shape
    return [
        BatchReader(
            Samples.of_store(store, seed=17, sequence_length=4),
            global_batch=batch,
            micro_batch=rows,
            accumulation=accumulation,
            data_rank=rank,
            data_degree=data,
            log_path=log / f"{rank}.jsonl" if log else None,
            epoch=1,
        )
        for rank in range(data)
    ]


def rows_in_order(store: TokenStore, shape: tuple[int, int, int], batch: int, step: int) -> list[list[int]]:
    """Rows of a step as (accumulation, rank, row), padding left out."""
    batches = [reader.step(step) for reader in readers(store, shape, batch)]
    found = []
    for number in range(shape[2]):
        for of_rank in batches:
            micro = of_rank[number]
            assert len(of_rank) == shape[2]
            assert micro.input_ids.shape == micro.labels.shape == micro.position_ids.shape == (shape[1], 4)
            real = (micro.document_ids >= 0).any(dim=1)
            found += micro.input_ids[real].tolist()
            assert bool((micro.labels[~real] == IGNORED).all())
    return found


def test_a_resize_changes_who_reads_a_sample_and_never_which(tmp_path: Path) -> None:
    store = a_store(tmp_path / "s", [241])  # 61 samples: data epochs do not end with a step
    order = SampleOrder(store.sequences(4), seed=17)
    shapes = [(4, 3, 1), (4, 3, 1), (3, 4, 1), (2, 3, 2), (6, 2, 1), (1, 12, 1), (5, 3, 1), (1, 5, 3)]
    seen = []
    for step, shape in enumerate(shapes, 1):
        seen += rows_in_order(store, shape, 12, step)
    ids = order.ids(0, 12 * len(shapes))
    expected = [store.sample(sample, 4)[:4].tolist() for sample in ids]
    assert [row[: len(want)] for row, want in zip(seen, expected, strict=True)] == expected
    assert sorted(ids[:61]) == list(range(61))


def test_any_sequence_of_sizes_reads_each_sample_once(tmp_path: Path) -> None:
    store = a_store(tmp_path / "s", [120])
    random_numbers = random.Random(11)
    for case in range(20):
        batch = random_numbers.randint(1, 13)
        log = tmp_path / str(case)
        steps = 3 * -(-store.sequences(4) // batch)
        for step in range(1, steps + 1):
            data, rows = random_numbers.randint(1, 5), random_numbers.randint(1, 4)
            accumulation = -(-batch // (data * rows)) + random_numbers.randint(0, 1)
            for reader in readers(store, (data, rows, accumulation), batch, log):
                reader.step(step)
                reader.close()
        lines = [line for path in log.glob("*.jsonl") for line in read_log(path)]
        at = {
            (line["step"] - 1) * batch + position: sample
            for line in lines
            for position, sample in zip(line["positions"], line["ids"], strict=True)
        }
        assert sum(len(line["ids"]) for line in lines) == steps * batch
        assert [at[position] for position in range(steps * batch)] == SampleOrder(30, 17).ids(
            0, steps * batch
        )


def test_the_log_holds_what_was_read(tmp_path: Path) -> None:
    store = a_store(tmp_path / "s", [100])
    for reader in readers(store, (2, 2, 2), 7, tmp_path / "log"):
        reader.step(3)
    first, second = (read_log(tmp_path / "log" / f"{rank}.jsonl") for rank in range(2))
    assert [line["positions"] for line in first + second] == [[0, 1, 4, 5], [2, 3, 6]]
    assert (first[0]["epoch"], first[0]["step"], second[0]["rank"]) == (1, 3, 1)
    assert first[0]["ids"] + second[0]["ids"] != list(range(7))
    assert second[0]["hash"] == [sample_hash(store.sample(sample, 4)) for sample in second[0]["ids"]]


def test_a_log_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"step": 1}) + "\n" + '{"step": 2, "i')
    assert read_log(path) == [{"step": 1}]


def test_a_batch_that_does_not_fit_is_refused_with_the_equation(tmp_path: Path) -> None:
    store = a_store(tmp_path / "s", [100])
    with pytest.raises(
        ValueError, match=r"data 2 x accumulation 1 x micro-batch 3 = 6 places, but the global batch is 7"
    ):
        readers(store, (2, 3, 1), 7)
