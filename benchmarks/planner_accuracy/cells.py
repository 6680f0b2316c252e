"""Single cells of a row: numbers, and names that tables write in their own ways."""

from __future__ import annotations

import re
from collections.abc import Mapping

Row = Mapping[str, str]


class RowError(ValueError):
    """A row that cannot be costed, with the reason."""


def number(row: Row, column: str) -> float | None:
    found = re.match(r"\d+(\.\d+)?", row.get(column, ""))
    return float(found[0]) if found else None


def whole(row: Row, column: str) -> int | None:
    found = number(row, column)
    return None if found is None else int(found)


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
