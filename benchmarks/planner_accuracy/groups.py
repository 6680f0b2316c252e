"""Which groups a row of measurements belongs to, for corrections: where it was published, what ran, on what.

Read from what was configured only. The levels go from wide to narrow: a source (and its section) has its own
way to measure, a model its kernels on one kind of accelerator.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from benchmarks.planner_accuracy.rows import Reading, Row
from trainingrun.planner.cost.calibration import Corrections, Level

MEMORY_FILE = Path(__file__).with_name("corrections_memory.json")
TIME_FILE = Path(__file__).with_name("corrections_time.json")

MEMORY_LEVELS = (
    Level(("source",), 0.1),
    Level(("source", "test"), 0.1),
    Level(("source", "test", "section", "gpu"), 0.1),
)

TIME_LEVELS = (
    Level(("source",), 0.1),
    Level(("source", "section"), 0.1),
    Level(("framework", "gpu", "compute"), 0.1),
    Level(("framework", "model"), 0.1),
    Level(("framework", "model", "gpu"), 0.1),
)


def names(row: Row, reading: Reading) -> dict[str, str]:
    work = reading.workload
    reference = row.get("source_ref", "")
    found = re.search(r"golden_values_(\w+)\.json", reference)
    if found:
        reference = found[1]  # which image of the tests, and which machine
    elif re.search(r"plan_config|\.json$", reference):
        reference = ""
    return {
        "source": row.get("source", ""),
        "section": reference,
        "framework": work.framework.name,
        "model": row.get("model", ""),
        "test": row.get("model", "").removesuffix("_1node") if found else "",
        "gpu": work.machine.name,
        "compute": work.numerics.compute,
    }


def load(file: Path) -> Corrections:
    """Corrections that `fit` wrote; none where there is no file."""
    if not file.exists():
        return Corrections((), ())
    found = json.loads(file.read_text())
    levels = tuple(Level(tuple(one["fields"]), one["width"]) for one in found)
    return Corrections(levels, tuple(one["table"] for one in found))


def dump(corrections: Corrections) -> str:
    document = [
        {"fields": level.fields, "width": level.width, "table": _rounded(table)}
        for level, table in zip(corrections.levels, corrections.tables, strict=True)
    ]
    return json.dumps(document, indent=0) + "\n"


def _rounded(table: Mapping[str, float]) -> dict[str, float]:
    return {key: round(value, 4) for key, value in sorted(table.items()) if abs(value) >= 0.001}
