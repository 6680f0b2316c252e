"""Kubernetes quantities as numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainingrun.api.quantity import accelerator, parse_bytes, parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1.0),
        (2, 2.0),
        (1.5, 1.5),
        ("500m", 0.5),
        ("4Gi", 4 * 2**30),
        ("900Gi", 900 * 2**30),
        ("1.5Ki", 1536.0),
        ("4G", 4e9),
        ("1k", 1000.0),
        ("2E", 2e18),
        ("2e3", 2000.0),
        ("2E3", 2000.0),
        ("1Ei", 2.0**60),
    ],
)
def test_a_quantity_is_read_in_base_units(text: str | int | float, value: float) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text", ["", "4Gib", "Gi", "-1", "1 Gi", "1e", "1K", "1.", ".5", "0x10", "١", "4Gi\n"]
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)


@given(st.integers(min_value=0, max_value=2**50), st.sampled_from(["", "Ki", "Mi"]))
def test_whole_bytes_are_exact(number: int, unit: str) -> None:
    scale = {"": 1, "Ki": 2**10, "Mi": 2**20}[unit]
    assert parse_bytes(f"{number}{unit}") == float(number * scale)


def test_an_accelerator_is_a_resource_with_a_vendor() -> None:
    assert accelerator({"cpu": "96", "memory": "900Gi", "nvidia.com/gpu": "8"}) == ("nvidia.com/gpu", 8)
    assert accelerator({"cpu": "1", "memory": "4Gi"}) is None
