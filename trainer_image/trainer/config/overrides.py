"""`spec.training.overrides`: what few runs need. A closed set; each has a default that changes nothing."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass
from typing import Any

from trainer.errors import ConfigError

_WHERE = "spec.training.overrides"
_KNOWN = ("zLoss", "emaDecay", "attention", "compile")


@dataclass(frozen=True)
class Overrides:
    z_loss: float = 0.0  # coefficient
    ema_decay: float | None = None  # None: no average is kept
    attention: str = "Sdpa"  # Sdpa | Eager: chosen, never Auto
    compile: bool = False


def read_overrides(overrides: dict[str, Any]) -> Overrides:
    unknown = sorted(set(overrides) - set(_KNOWN))
    if unknown:
        raise ConfigError(
            f"{_WHERE}.{unknown[0]}", overrides[unknown[0]], "unknown", f"known are: {', '.join(_KNOWN)}"
        )
    return Overrides(
        z_loss=_share(overrides, "zLoss") or 0.0,
        ema_decay=_share(overrides, "emaDecay"),
        attention=_attention(overrides.get("attention") or "Auto"),
        compile=_compile(overrides.get("compile") or False),
    )


def _share(overrides: dict[str, Any], key: str) -> float | None:
    value = overrides.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ConfigError(f"{_WHERE}.{key}", value, "not a number from 0 to less than 1", "set it to one")
    return float(value)


def _attention(name: str) -> str:
    """Auto is Sdpa: torch's fused attention, which takes the mask that keeps documents apart."""
    if name in ("Auto", "Sdpa"):
        return "Sdpa"
    if name == "Eager":
        return name
    if name == "Flash":
        missing = importlib.util.find_spec("flash_attn") is None
        problem = (
            "the package flash-attn is not installed" if missing else "this version computes on CPUs only"
        )
        raise ConfigError(f"{_WHERE}.attention", name, problem, "use Sdpa")
    raise ConfigError(f"{_WHERE}.attention", name, "not an attention", "use Auto, Sdpa or Eager")


def _compile(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{_WHERE}.compile", value, "not true or false", "set it to one")
    if value and not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        raise ConfigError(
            f"{_WHERE}.compile", value, "torch.compile needs a C++ compiler, and there is none", "remove it"
        )
    return value
