"""Tensors in 8 bits: a code out of 256 for each element, and a scale for each block of a row.

From Dettmers, Lewis, Shleifer, Zettlemoyer, "8-bit Optimizers via Block-wise Quantization" (2022): a block is divided
by its largest magnitude, and each element becomes the code of the nearest value of the dynamic map. That map has seven
decades, 10^(e-6) x [0.1, 1] for e = 0..6; decade e is cut into 2^e equal intervals (2^(e+1) without a sign) whose
middles are the values, with 0 and 1 besides. So an error is at most 0.45 / 64 + 2^-14 of the block's largest magnitude
(0.45 / 128 + 2^-14 without a sign; 2^-14 is the price of a fast look-up), which itself is exact unless it is negative,
and what is a million times smaller is told from 0.

Blocks lie within one row, the last dim, of the whole tensor; the last block of a row may be shorter. A row does not
know of the others, so any cut between rows or between blocks gives the same bits. Used by AdamW8bit only.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F

from trainingrun.protocol.eight_bits import BLOCK

_DECADES = 7
_TABLE_BITS = 20  # of a float32 without its sign: 8 of the exponent and 12 of the mantissa
_DROPPED_BITS = 31 - _TABLE_BITS


class CodeMap:
    """`values` ascend; code c stands for values[c]. Borders are the middles between neighbours, rounded to 12 bits of
    mantissa: thus the first 21 bits of a number decide its code, and one look-up finds it, many times faster than a
    search. A number on a border gets the code that is further from 0.

    Without a sign, only 0 is stored as 0. A second moment that vanished beside a first one that did not would make the
    next step as large as 1 / epsilon.
    """

    def __init__(self, *, signed: bool) -> None:
        positive = [
            10.0 ** (decade - _DECADES + 1) * (0.1 + 0.9 * (2 * interval + 1) / (2 * intervals))
            for decade in range(_DECADES)
            for intervals in [1 << (decade if signed else decade + 1)]
            for interval in range(intervals)
        ]
        negative = [-value for value in reversed(positive)] if signed else []
        self.values = torch.tensor([*negative, 0.0, *positive, 1.0], dtype=torch.float64).float()
        middles = (self.values[1:].double() + self.values[:-1].double()) / 2
        keys = (middles.abs().float().view(torch.int32) + (1 << (_DROPPED_BITS - 1))) >> _DROPPED_BITS
        if not signed:
            keys[0] = 1
        self._table = _table(keys, negatives=len(negative))

    def codes_of(self, numbers: torch.Tensor) -> torch.Tensor:
        """uint8; `numbers` are float32 in [-1, 1]. NaN gets some code: its scale is NaN as well."""
        keys = (numbers.view(torch.int32) >> _DROPPED_BITS).bitwise_and_((2 << _TABLE_BITS) - 1)
        return self._table.index_select(0, keys.flatten()).view(numbers.shape)

    def values_of(self, codes: torch.Tensor) -> torch.Tensor:
        return self.values.take(codes.long())


def _table(borders: torch.Tensor, *, negatives: int) -> torch.Tensor:
    """The code of every key. `borders` are keys of magnitudes, the first `negatives` of them below zero."""
    keys = torch.arange(1 << _TABLE_BITS, dtype=torch.int32)
    above = negatives + torch.bucketize(keys, borders[negatives:], right=True)
    below = negatives - torch.bucketize(keys, borders[:negatives].flip(0), right=True)
    return torch.cat([above, below]).to(torch.uint8)  # the sign is the first bit of a key


@functools.cache
def code_map(*, signed: bool) -> CodeMap:
    return CodeMap(signed=signed)


def blocks_in(row: int) -> int:
    return -(-row // BLOCK)


class Coded:
    """A moment of a tensor, as codes of its shape and scales of shape (..., blocks). Zero at first."""

    def __init__(self, like: torch.Tensor, *, signed: bool) -> None:
        row = like.shape[-1]
        self.codes = torch.zeros(like.shape, dtype=torch.uint8)
        self.scales = torch.zeros((*like.shape[:-1], blocks_in(row)), dtype=torch.float32)
        self._map = code_map(signed=signed)
        self._rows = self.codes.view(-1, row), self.scales.view(-1, blocks_in(row))

    def read(self, rows: slice, dtype: torch.dtype) -> torch.Tensor:
        """A copy of some rows, of the tensor seen as a matrix."""
        codes, scales = (part[rows] for part in self._rows)
        values = _in_blocks(self._map.values_of(codes).to(dtype))
        return _in_rows(values.mul_(scales.to(dtype).unsqueeze(-1)), codes.shape[-1])

    def write(self, rows: slice, numbers: torch.Tensor) -> None:
        codes, scales = (part[rows] for part in self._rows)
        blocks = _in_blocks(numbers)
        scales.copy_(blocks.abs().amax(dim=-1))
        divisors = scales.masked_fill(scales == 0.0, 1.0).to(blocks.dtype).unsqueeze(-1)
        relative = (blocks / divisors).float().clamp_(-1.0, 1.0)
        codes.copy_(_in_rows(self._map.codes_of(relative), codes.shape[-1]))


def _in_blocks(rows: torch.Tensor) -> torch.Tensor:
    """(rows, blocks, elements); zeros fill up the last block where there are several."""
    length = rows.shape[-1]
    if length < BLOCK:
        return rows.unsqueeze(1)
    if length % BLOCK:
        rows = F.pad(rows, (0, -length % BLOCK))
    return rows.unflatten(-1, (-1, BLOCK))


def _in_rows(blocks: torch.Tensor, length: int) -> torch.Tensor:
    return blocks.flatten(1)[:, :length]
