"""Tensors in 8 bits: the map of codes against its closed values, and the error of rounding against its bound."""

from __future__ import annotations

import pytest
import torch

from trainer.optim.codes import Coded, code_map

BORDER = 2.0**-14  # a border has 12 bits of mantissa: between 1/2 and 1 it is off by this at most
LARGEST_ERROR = {True: 0.45 / 64 + BORDER, False: 0.45 / 128 + BORDER}


def test_the_signed_map_has_seven_decades_of_1_to_64_values_each_way() -> None:
    values = code_map(signed=True).values.double()
    assert len(values) == 256
    assert bool((values.diff() > 0).all())
    assert torch.equal(values[:127], -values[128:255].flip(0))
    assert (float(values[127]), float(values[255])) == (0.0, 1.0)
    first, last = [0.55e-6], [0.1 + 0.9 * (2 * k + 1) / 128 for k in range(64)]
    assert values[128:129].tolist() == pytest.approx(first)
    assert values[129:131].tolist() == pytest.approx([0.325e-5, 0.775e-5])
    assert values[191:255].tolist() == pytest.approx(last)


def test_the_unsigned_map_has_twice_the_values_in_each_decade() -> None:
    values = code_map(signed=False).values.double()
    assert len(values) == 256
    assert bool((values.diff() > 0).all())
    assert values[:3].tolist() == pytest.approx([0.0, 0.325e-6, 0.775e-6])
    assert values[127:255].tolist() == pytest.approx([0.1 + 0.9 * (2 * k + 1) / 256 for k in range(128)])
    assert float(values[255]) == 1.0


def numbers(*, signed: bool) -> torch.Tensor:
    """All over [-1, 1] or [0, 1], evenly and by magnitude."""
    generator = torch.Generator().manual_seed(3)
    even = torch.rand(50_000, generator=generator)
    found = torch.cat(
        [even, 10.0 ** (-9.0 * torch.rand(50_000, generator=generator)), torch.tensor([0.0, 1.0])]
    )
    return torch.cat([found, -found]) if signed else found


@pytest.mark.parametrize("signed", [True, False])
def test_a_number_gets_the_nearest_code(signed: bool) -> None:
    codes, given = code_map(signed=signed), numbers(signed=signed)
    values, found = codes.values, codes.values_of(codes.codes_of(given))
    nearest = values[torch.bucketize(given, (values[1:] + values[:-1]) / 2)]
    off, least = (found - given).abs(), (nearest - given).abs()
    above = given > 1e-6  # a positive second moment never becomes 0
    assert bool((off <= least + 2 * given.abs() * 2.0**-13)[above | signed].all())
    assert float(off.max()) <= LARGEST_ERROR[signed]
    assert torch.equal(codes.codes_of(values).long(), torch.arange(256))


def test_only_0_is_stored_as_a_second_moment_of_0() -> None:
    codes = code_map(signed=False)
    found = codes.values_of(codes.codes_of(torch.tensor([0.0, 1e-30, 1e-9, 1e-7])))
    assert found.tolist() == pytest.approx([0.0, 0.325e-6, 0.325e-6, 0.325e-6])


@pytest.mark.parametrize("row", [7, 256, 300, 768])
@pytest.mark.parametrize("signed", [True, False])
def test_an_error_is_a_small_part_of_the_largest_element_of_its_own_block(signed: bool, row: int) -> None:
    given = torch.randn(5, row, generator=torch.Generator().manual_seed(row))
    given = given * torch.logspace(-4, 4, row) if signed else given.square() * torch.logspace(4, -12, row)
    coded = Coded(given, signed=signed)
    coded.write(slice(0, 5), given)
    off = (coded.read(slice(0, 5), torch.float32) - given).abs()
    for start in range(0, row, 256):
        block = slice(start, start + 256)
        largest = given[:, block].abs().amax(dim=1, keepdim=True)
        assert torch.equal(coded.scales[:, start // 256], largest.squeeze(1))
        assert bool((off[:, block] <= largest * LARGEST_ERROR[signed] * (1 + 1e-6)).all())
