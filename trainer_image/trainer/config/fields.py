"""Values of a resolved specification, read one at a time; a bad one is named with its field and the fix."""

from __future__ import annotations

from typing import Any

from trainer.errors import ConfigError


def cores(quantity: str | int | float) -> float:
    text = str(quantity)
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


def positive(mapping: dict[str, Any], key: str, where: str) -> int:
    value = mapping.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{where}.{key}", value, "not a positive whole number", "set it to one")
    return value
