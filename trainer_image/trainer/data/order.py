"""Which sample stands where in the run's endless sequence of samples.

A pure function of (number of samples, seed, position), and of nothing that a resize changes: position p
belongs to data epoch p // samples, and within one data epoch every sample stands exactly once. The
permutation is computed, not stored: a small cipher over the sample indices, whose arithmetic is written out
here so that no library's random generator can change the order of a run that is under way. Called by
`samples`, once for each source.
"""

from __future__ import annotations

import hashlib

import numpy as np

_ROUNDS = 8
_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)


class SampleOrder:
    def __init__(self, samples: int, seed: int | str) -> None:
        if samples < 1:
            raise ValueError(f"an order of {samples} samples: at least 1 is needed")
        self.samples = samples
        self.seed = seed
        # A balanced network permutes 2^(2*half) numbers; those past the last sample are walked over.
        self._half = np.uint64(max(2, -(-(samples - 1).bit_length() // 2)))
        self._mask = np.uint64((1 << int(self._half)) - 1)

    def ids(self, start: int, count: int) -> list[int]:
        """Sample ids at positions [start, start + count); may cross data epochs."""
        found: list[int] = []
        while count > 0:
            data_epoch, first = divmod(start, self.samples)
            taken = min(count, self.samples - first)
            found += self._permuted(data_epoch, np.arange(first, first + taken, dtype=np.uint64)).tolist()
            start, count = start + taken, count - taken
        return found

    def _permuted(self, data_epoch: int, values: np.ndarray) -> np.ndarray:
        digest = hashlib.blake2b(f"order:{self.seed}:{data_epoch}".encode(), digest_size=8 * _ROUNDS).digest()
        keys = np.frombuffer(digest, dtype="<u8").astype(np.uint64)
        values = self._scrambled(values, keys)
        outside = values >= self.samples
        while outside.any():
            values[outside] = self._scrambled(values[outside], keys)
            outside = values >= self.samples
        return values

    def _scrambled(self, values: np.ndarray, keys: np.ndarray) -> np.ndarray:
        left, right = values >> self._half, values & self._mask
        for key in keys:
            mixed = (right ^ key) * _MULTIPLY_1
            mixed = (mixed ^ (mixed >> np.uint64(29))) * _MULTIPLY_2
            mixed ^= mixed >> np.uint64(32)
            left, right = right, left ^ (mixed & self._mask)
        return (left << self._half) | right
