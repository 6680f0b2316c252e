"""The run's endless sequence of samples: which source, which of its rows, at any position.

A pure function of (data, seed, position). Within one epoch of a source each of its rows stands exactly once; an epoch
of one source has nothing to do with those of the others. Called by the ranks' reader. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainer.data.blocks import Block, empty_block, fill_row
from trainer.data.mixture import Mixture, Stage, Volume
from trainer.data.order import SampleOrder
from trainer.data.row_plan import ConcatenatedRows, Rows
from trainer.data.store import TokenStore


@dataclass(frozen=True, slots=True)
class Sample:
    source: int
    id: int  # number of the row within its source


class Samples:
    def __init__(
        self,
        rows: Sequence[Rows],
        *,
        names: Sequence[str],
        stages: Sequence[Stage],
        seed: int,
        sequence_length: int,
    ) -> None:
        """`rows`, `names` and the weights of each stage are by source."""
        self.sequence_length = sequence_length
        self._rows = list(rows)
        self._end_token = rows[0].store.end_token
        # One source has the order that it would have by itself, whatever it is called.
        seeds = [f"{seed}:{name}" for name in names] if len(rows) > 1 else [seed]
        self._orders = [SampleOrder(one.count, key) for one, key in zip(rows, seeds, strict=True)]
        self._mixture = Mixture([Volume(one.count, one.store.tokens) for one in rows], stages)

    @classmethod
    def of_store(cls, store: TokenStore, *, seed: int, sequence_length: int) -> Samples:
        """Of one source, concatenated."""
        rows = [ConcatenatedRows(store, sequence_length)]
        stages = [Stage(0, (1,))]
        return cls(rows, names=[""], stages=stages, seed=seed, sequence_length=sequence_length)

    def at(self, start: int, count: int) -> list[Sample]:
        """The samples at positions [start, start + count)."""
        turns = self._mixture.turns(start, count)
        numbers: dict[int, list[int]] = {}
        for turn in turns:
            numbers.setdefault(turn.source, []).append(turn.number)
        # One source's turns follow each other without a gap, within a stage and from stage to stage.
        ids = {source: iter(self._orders[source].ids(of[0], len(of))) for source, of in numbers.items()}
        return [Sample(turn.source, next(ids[turn.source])) for turn in turns]

    def block(self, samples: Sequence[Sample], rows: int) -> Block:
        """`samples` as the first rows, padding rows after them up to `rows`. Raises StoreDamaged, SourceAway."""
        made = empty_block(rows, self.sequence_length, self._end_token)
        for row, sample in enumerate(samples):
            of = self._rows[sample.source]
            fill_row(made, row, of.store, of.spans(sample.id))
        return made

    def logged(self, sample: Sample) -> np.ndarray:
        return self._rows[sample.source].logged(sample.id)
