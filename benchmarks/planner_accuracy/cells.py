"""Single cells of a row: numbers, and names that tables write in their own ways."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

Row = Mapping[str, str]


class RowError(ValueError):
    """A row that cannot be costed, with the reason."""


_UNSAID = ("", "-", "?", "n/a", "none", "unknown")
_MOST = 1e9  # nothing that a row says is as much


def number(row: Row, column: str) -> float | None:
    """None where the row does not say. Raises RowError for what is not a number above zero."""
    text = row.get(column, "").strip()
    if text.lower() in _UNSAID:
        return None
    if (
        not re.fullmatch(r"\d+(\.\d*)?([eE]\+?\d+)?\??", text, re.ASCII)
        or not 0 < float(text.rstrip("?")) < _MOST
    ):
        raise RowError(
            f"{column} {text!r} is not a number above 0 and below 1e9; give one, or leave it empty"
        )
    return float(text.rstrip("?"))


def whole(row: Row, column: str) -> int | None:
    found = number(row, column)
    if found is not None and found != int(found):
        raise RowError(f"{column} {row[column]!r} is not a whole number; give one, or leave it empty")
    return None if found is None else int(found)


def outcome(row: Row, column: str) -> float:
    """What was measured; NaN where that is no number above zero."""
    text = (row.get(column) or "").strip()
    value = float(text) if re.fullmatch(r"\d+(\.\d*)?([eE][+-]?\d+)?", text, re.ASCII) else math.nan
    return value if 0 < value < math.inf else math.nan


def gpu_name(row: Row) -> str:
    name = row.get("gpu", "").split("?")[0].strip()
    return "A100-SXM-80GB" if not name or "not stated" in name else name


def adapter_of(name: str) -> str:
    """ "LoRA", "QLoRA", "Adapter", "QAdapter" or "SFT"; "" for whole models."""
    plain = name.lower()
    if "qlora" in plain or ("lora" in plain and "quant=bnb" in plain):
        return "QLoRA"
    for word in ("lora", "adapter", "sft"):
        if re.search(rf"\b{word}\b", plain):
            if word == "adapter" and "quant=bnb" in plain:
                return "QAdapter"
            return {"lora": "LoRA", "adapter": "Adapter", "sft": "SFT"}[word]
    return ""
