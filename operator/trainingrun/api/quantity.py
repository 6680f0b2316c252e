"""Kubernetes quantities ("4Gi", "500m", 2) as numbers, and what a node's resources say about its processes.

Pure. Used by the API's rules, the planner's inputs and the adapters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][0-9]{1,2})?$"
RESOURCE_NAME_PATTERN = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"

_SCALES = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", start=1)},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)},
}
_QUANTITY = re.compile(r"^(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<suffix>[A-Za-z]{0,2}|[eE][0-9]{1,2})$")


def parse_quantity(text: str | int | float) -> float:
    """The value in base units: bytes of memory, cores of CPU, devices. Raises ValueError for anything else.

    "4Gi" is 4294967296.0, "500m" is 0.5, "1e3" is 1000.0. Negative quantities do not occur in our API.
    """
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise ValueError(f"{text!r} is not a quantity")
    number, suffix = Decimal(match["number"]), match["suffix"]
    if suffix[:1] in ("e", "E") and suffix[1:].isdigit():
        return float(number.scaleb(int(suffix[1:])))
    if suffix not in _SCALES:
        raise ValueError(f"{text!r} is not a quantity: unknown unit {suffix!r}")
    return float(number * _SCALES[suffix])


def parse_bytes(text: str | int | float) -> int:
    """A quantity of memory in bytes, rounded down."""
    return int(parse_quantity(text))


def accelerator(per_node: Mapping[str, str]) -> tuple[str, int] | None:
    """(resource name, count) of the accelerators that each node asks for, or None: it trains on CPUs."""
    for name, amount in per_node.items():
        if "/" in name:
            return name, int(parse_quantity(amount))
    return None
