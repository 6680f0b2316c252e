"""How the CLI prints: aligned tables, bars, JSON, YAML and errors. Knows nothing of runs or plans.

Everything reads well without colour. Colour is used only on a terminal, and never with NO_COLOR set or
TERM=dumb.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import IO, Any

from trainingrun.api.errors import UserError


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def emit(text: str) -> None:
    """Data, to stdout."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def say(text: str) -> None:
    """Talk, to stderr."""
    sys.stderr.write(text + "\n")


def print_error(error: UserError) -> None:
    say(f"{styled('error:', '31;1', sys.stderr)} {error}")


def document(data: Any, form: Format) -> str:
    """`data` as JSON or YAML. JSON keeps numbers as they are; keys keep their order in both."""
    if form is Format.YAML:
        import yaml

        return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned by spaces, two between; numbers are not special. The last column is as wide as it
    needs.
    """
    widths = [max(len(row[i]) for row in [headers, *rows]) for i in range(len(headers))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [headers, *rows]
    ]
    lines[0] = styled(lines[0], "1", sys.stdout)
    return "\n".join(lines) + "\n"


def bar(share: float, width: int = 40) -> str:
    """A bar of `#` for a share from 0 to 1; anything above nothing shows at least a dot."""
    count = round(min(max(share, 0.0), 1.0) * width)
    return "#" * count if count else ("." if share > 0 else "")


def styled(text: str, code: str, stream: IO[str]) -> str:
    """`text` in an ANSI style where the stream is a terminal that wants it."""
    wanted = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return f"\x1b[{code}m{text}\x1b[0m" if wanted else text


def one_line(text: str, limit: int = 0) -> str:
    """Somebody else's text on one line, without control characters, at most `limit` characters long (0: any)."""
    clean = " ".join("".join(one if one.isprintable() or one.isspace() else "?" for one in text).split())
    return clean if not limit or len(clean) <= limit else f"{clean[: limit - 1]}…"


def indented(text: str, by: str = "  ") -> str:
    return "\n".join(by + line for line in text.splitlines())
