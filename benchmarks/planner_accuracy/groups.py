"""Which groups a row of measurements belongs to, for corrections: where it was published, what ran, on what, laid
out how.

Read from what was configured only. A group is a source, a model, or one degree of the layout of a framework on one
kind of accelerator (its micro-batch, its sharding, its context ranks): what kernels and schedules do there that
shapes do not say. Levels add up, each shrunk by how little its groups differ; `fit` shows what they are worth.
"""

from __future__ import annotations

import json
import math
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

# Widths were chosen by what rows and whole sweeps left out say, together.
TIME_LEVELS = (
    Level(("source",), 0.06),
    Level(("source", "world"), 0.08),
    Level(("framework", "model"), 0.18),
    Level(("framework", "model", "compute"), 0.06),
    Level(("framework", "model", "gpu"), 0.03),
    Level(("framework", "model", "gpu", "compute"), 0.03),
    Level(("framework", "model", "gpu", "tokens"), 0.03),
    Level(("framework", "model", "degrees"), 0.05),
    Level(("framework", "gpu", "compute"), 0.12),
    Level(("framework", "gpu", "sharding"), 0.12),
    Level(("framework", "gpu", "sequence"), 0.18),
    Level(("framework", "gpu", "recompute"), 0.06),
    Level(("framework", "gpu", "expert"), 0.06),
    Level(("framework", "gpu", "context"), 0.03),
    Level(("framework", "gpu", "micro_batch"), 0.03),
    Level(("framework", "gpu", "head"), 0.03),
)


def names(row: Row, reading: Reading) -> dict[str, str]:
    work, layout = reading.workload, reading.workload.layout
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
        "world": str(layout.world),
        "degrees": f"{layout.tensor}.{layout.pipeline}.{layout.context}.{layout.expert}",
        "sharding": layout.sharding.value,
        "sequence": str(work.sequence_length),
        "recompute": layout.recompute.value,
        "expert": str(layout.expert),
        "context": str(layout.context),
        "micro_batch": str(layout.micro_batch),
        "tokens": str(round(math.log2(layout.micro_batch * work.sequence_length / layout.context))),
        "head": str(work.model.head_dim),
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
