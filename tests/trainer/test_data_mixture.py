"""Mixtures: shares are of tokens, and each source's epochs are whole, whatever happens to the sizes."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.trainer.texts import a_store

from trainer.data.batches import BatchReader, read_log, sample_hash
from trainer.data.blocks import PADDING_DOCUMENT
from trainer.data.mixture import PERIOD, Mixture, Stage, Volume
from trainer.data.packing import BEST_FIT, CONCATENATE, NONE, PACKINGS
from trainer.data.row_plan import make_rows
from trainer.data.samples import Samples

WEIGHTS = (7, 2, 1)


def a_mixture(
    folder: Path,
    lengths: list[list[int]],
    stages: list[Stage],
    *,
    length: int = 16,
    packing: str = CONCATENATE,
) -> Samples:
    stores = [a_store(folder / f"s{number}", of, vocabulary=1 << 20) for number, of in enumerate(lengths)]
    rows = [make_rows(store, length, packing, folder) for store in stores]
    names = [f"source-{number}" for number in range(len(stores))]
    return Samples(rows, names=names, stages=stages, seed=17, sequence_length=length)


@pytest.mark.parametrize("packing", PACKINGS)
def test_realised_shares_of_tokens_are_the_weights(packing: str, tmp_path: Path) -> None:
    """Of long, middling and short documents: by documents instead, .1 of the weight would be .004 of the tokens."""
    numbers = random.Random(8)
    lengths = [
        [numbers.randint(low, high) for _ in range(300)] for low, high in ((60, 200), (10, 60), (2, 9))
    ]
    samples = a_mixture(tmp_path, lengths, [Stage(0, WEIGHTS)], length=64, packing=packing)
    tokens = np.zeros(3)
    chosen = samples.at(0, 20_000)
    for source in range(3):
        mine = [sample for sample in chosen if sample.source == source]
        block = samples.block(mine, len(mine))
        tokens[source] = (block.document_ids != PADDING_DOCUMENT).sum()
    assert np.abs(tokens / tokens.sum() - np.array(WEIGHTS) / 10).max() < 0.001
    assert np.abs(tokens / tokens.sum() / (np.array(WEIGHTS) / 10) - 1).max() < 0.01


@pytest.mark.parametrize("weights", [(7, 2, 1), (1, 1, 1), (999_999, 1, 0), (5, 0, 0), (13, 8, 3)])
def test_each_stretch_has_its_share_to_about_a_sample(weights: tuple[int, ...]) -> None:
    mixture = Mixture([Volume(1000, 64_000)] * 3, [Stage(0, weights)])
    sources = np.array([turn.source for turn in mixture.turns(0, 30_000)])
    share = np.array(weights) / sum(weights)
    for source in range(3):
        read = np.cumsum(sources == source)
        assert np.abs(read - share[source] * np.arange(1, 30_001)).max() < 2


def test_the_turns_of_a_source_are_numbered_without_a_gap_from_stage_to_stage() -> None:
    stages = [Stage(0, (7, 2, 1)), Stage(1000, (0, 0, 5)), Stage(1001, (1, 0, 0)), Stage(5000, (1, 1, 1))]
    turns = Mixture([Volume(100, 900), Volume(50, 5000), Volume(3, 20)], stages).turns(0, 9000)
    for source in range(3):
        numbers = [turn.number for turn in turns if turn.source == source]
        assert numbers == list(range(len(numbers)))
    assert turns[1000].source == 2
    assert {turn.source for turn in turns[1001:5000]} == {0}


def test_a_turn_follows_from_its_position_alone() -> None:
    volumes, stages = [Volume(9, 90), Volume(7, 700), Volume(5, 5)], [Stage(0, WEIGHTS), Stage(77, (1, 1, 4))]
    whole = Mixture(volumes, stages).turns(0, 300)
    other = Mixture(volumes, stages)
    assert [other.turns(position, 1)[0] for position in reversed(range(300))] == whole[::-1]
    assert other.turns(70, 20) == whole[70:90]


def test_after_a_period_the_turns_go_on_where_they_stopped() -> None:
    mixture = Mixture([Volume(10, 10)] * 2, [Stage(0, (2, 1)), Stage(3 * PERIOD + 5, (1, 2))])
    near = mixture.turns(PERIOD - 3, 6)
    assert [turn.number for turn in near if turn.source == 0] == sorted(
        turn.number for turn in near if not turn.source
    )
    assert sum(turn.number for turn in mixture.turns(PERIOD, 2)) == PERIOD
    far = mixture.turns(3 * PERIOD + 4, 4)
    assert far[-1].source in (0, 1) and far[0].number + far[1].number >= 3 * PERIOD // 2


def test_the_order_of_a_mixture_never_changes_with_the_software(tmp_path: Path) -> None:
    samples = a_mixture(tmp_path, [[400], [900], [100]], [Stage(0, WEIGHTS), Stage(20, (0, 1, 1))])
    assert "".join(str(sample.source) for sample in samples.at(0, 30)) == "001020010000120001002121212121"
    assert [sample.id for sample in samples.at(0, 8)] == [11, 4, 55, 10, 2, 14, 9, 2]


def test_sources_are_read_in_an_order_of_their_own_and_one_alone_in_the_runs(tmp_path: Path) -> None:
    pair = a_mixture(tmp_path / "pair", [[640], [640]], [Stage(0, (1, 1))])
    ids = [[sample.id for sample in pair.at(0, 80) if sample.source == source] for source in range(2)]
    assert sorted(ids[0]) == sorted(ids[1]) == list(range(40))
    assert ids[0] != ids[1]
    alone = a_mixture(tmp_path / "alone", [[640]], [Stage(0, (5,))])
    store = a_store(tmp_path / "store", [640], vocabulary=1 << 20)
    of_store = Samples.of_store(store, seed=17, sequence_length=16)
    assert alone.at(0, 100) == of_store.at(0, 100)


@pytest.mark.parametrize("packing", [CONCATENATE, BEST_FIT, NONE])
def test_any_sequence_of_sizes_reads_each_sample_once_an_epoch_of_its_source(
    packing: str, tmp_path: Path
) -> None:
    """Kills included: a step that was rolled back is read again, and what survives is read exactly once."""
    numbers = random.Random(21)
    for case in range(6):
        lengths = [[numbers.randint(2, 40) for _ in range(numbers.randint(3, 25))] for _ in range(3)]
        stages = [Stage(0, (5, 3, 2)), Stage(numbers.randint(20, 60), (0, 1, 9)), Stage(100, (4, 0, 1))]
        samples = a_mixture(tmp_path / str(case), lengths, stages, packing=packing)
        batch = numbers.randint(1, 13)
        steps = -(-600 // batch)
        surviving = _train_through_resizes(samples, batch, steps, tmp_path / str(case) / "log", numbers)
        read = _surviving_reads(tmp_path / str(case) / "log", surviving, batch)
        assert [position for position, _, _ in read] == list(range(batch * steps))
        _each_epoch_is_whole(read, lengths, samples, tmp_path / str(case), packing)


def _train_through_resizes(
    samples: Samples, batch: int, steps: int, log: Path, numbers: random.Random
) -> dict[int, int]:
    """Which epoch of the run each step survived in."""
    surviving: dict[int, int] = {}
    step, epoch = 1, 1
    while step <= steps:
        data, rows = numbers.randint(1, 5), numbers.randint(1, 4)
        accumulation = -(-batch // (data * rows)) + numbers.randint(0, 1)
        last = min(steps, step + numbers.randint(0, 6))
        for rank in range(data):
            reader = BatchReader(
                samples,
                global_batch=batch,
                micro_batch=rows,
                accumulation=accumulation,
                data_rank=rank,
                data_degree=data,
                log_path=log / f"e{epoch}-{rank}.jsonl",
                epoch=epoch,
            )
            for one in range(step, last + 1):
                reader.step(one)
            reader.close()
        kept = numbers.randint(step - 1, last)  # the steps after it are lost with the node
        surviving |= dict.fromkeys(range(step, kept + 1), epoch)
        step, epoch = kept + 1, epoch + 1
    return surviving


def _surviving_reads(
    log: Path, surviving: dict[int, int], batch: int
) -> list[tuple[int, tuple[int, int], str]]:
    """(position, (source, id), hash), by position."""
    found = [
        ((line["step"] - 1) * batch + position, (source, sample), digest)
        for path in log.glob("*.jsonl")
        for line in read_log(path)
        if surviving[line["step"]] == line["epoch"]
        for position, source, sample, digest in zip(
            line["positions"], line["sources"], line["ids"], line["hash"], strict=True
        )
    ]
    return sorted(found)


def _each_epoch_is_whole(
    read: list[tuple[int, tuple[int, int], str]],
    lengths: list[list[int]],
    samples: Samples,
    folder: Path,
    packing: str,
) -> None:
    epochs = []
    for source in range(len(lengths)):
        store = a_store(folder / f"again-{source}", lengths[source], vocabulary=1 << 20)
        rows = make_rows(store, 16, packing, folder / "again")
        mine = [(sample, digest) for _, (of, sample), digest in read if of == source]
        epochs.append(len(mine) / rows.count)
        for first in range(0, len(mine), rows.count):
            of_epoch = [sample for sample, _ in mine[first : first + rows.count]]
            whole = len(of_epoch) == rows.count
            assert max(Counter(of_epoch).values()) == 1  # also in the epoch that the run's end cut off
            assert not whole or sorted(of_epoch) == list(range(rows.count))
        for sample, digest in mine[:20]:
            assert sample_hash(rows.logged(sample)) == digest
    assert max(epochs) > 2  # some source was read several times, and most ended within an epoch
    assert any(epoch % 1 for epoch in epochs)
