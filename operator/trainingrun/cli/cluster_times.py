"""Times as the API writes them, and as people read them: how long ago, and at what time of day.

Pure; the clock is the caller's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from trainingrun.cli.live import duration
from trainingrun.cluster.kubernetes.objects import seconds

_DAY = 86400.0
_FRACTION = re.compile(r"\.(\d+)")
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?")


def nanos_of(text: str) -> int | None:
    """Nanoseconds since 1970 of an RFC 3339 time, exactly; None for something else."""
    found = _FRACTION.search(text)
    fraction = (found[1] if found else "")[:9].ljust(9, "0")
    try:
        whole = datetime.fromisoformat(_FRACTION.sub("", text, count=1))
    except ValueError:
        return None
    return None if whole.tzinfo is None else round(whole.timestamp()) * 10**9 + int(fraction)


def created_of(thing: Mapping[str, Any]) -> float:
    return seconds(thing["metadata"].get("creationTimestamp"))


def age(then: float, now: float) -> str:
    """`42s`, `1m02s`, `3h05m`, `12d`; `-` when it is not known."""
    if then <= 0:
        return "-"
    since = max(0.0, now - then)
    return duration(since) if since < 2 * _DAY else f"{int(since // _DAY)}d"


def clock(at: float, now: float) -> str:
    """The local time of day, with the date when that is not clear."""
    form = "%H:%M:%S" if abs(now - at) < _DAY / 2 else "%Y-%m-%d %H:%M:%S"
    return datetime.fromtimestamp(at).strftime(form)


def parse_duration(text: str) -> float | None:
    """Seconds of `90`, `90s`, `10m`, `1h30m`, `2d`; None for something else."""
    found = _DURATION.fullmatch(text.strip())
    if not found or not any(found.groups()):
        return None
    days, hours, minutes, rest = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)
