"""docs/benchmarks.md: one section a benchmark, each written by its own command and left alone by the others."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def with_section(page: str, name: str, text: str) -> str:
    """`page` with what stands between the marks of `name` replaced. Raises ValueError when it has none."""
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{PAGE}: no marks {begin.strip()} and {end}. Fix: put them where the table belongs")
    return f"{before}{begin}{text.rstrip()}\n{end}{after}"


def write_section(name: str, text: str) -> None:
    PAGE.write_text(with_section(PAGE.read_text(), name, text))
