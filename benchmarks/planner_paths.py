"""What the planner takes for runs of many sizes, and what the largest loses to the fastest cut for that size alone.

    python -m benchmarks.planner_paths [--page docs/planner.md]

One line a model, machine and range of sizes. `--page` puts the table between its marks in that page. All predicted;
nothing is run.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.page import with_section
from benchmarks.planner_search import LLAMA_8B, LLAMA_70B, TRAINING
from trainingrun.planner.errors import PlanError
from trainingrun.planner.fastest import fastest
from trainingrun.planner.hardware import gpus
from trainingrun.planner.inputs import accelerator_node
from trainingrun.planner.search import plan
from trainingrun.planner.text import human_seconds
from trainingrun.planner.types import Inventory, ModelShape, NodeShape, PlannedRung
from trainingrun.planner.weighing import p_oom

SECTION = "planner-paths"
TRAINED = replace(TRAINING, global_batch_sequences=1024)
MODELS: dict[str, ModelShape] = {
    "1B": replace(
        LLAMA_70B,
        hidden_size=2048,
        intermediate_size=8192,
        layers=16,
        attention_heads=32,
        head_dim=64,
        tied_embeddings=True,
    ),
    "8B": LLAMA_8B,
    "70B": LLAMA_70B,
    "405B": replace(LLAMA_70B, hidden_size=16384, intermediate_size=53248, layers=126, attention_heads=128),
}
MACHINES = {
    "8 x H100": ("NVIDIA-H100-80GB-HBM3", 8),
    "8 x A100-40": ("NVIDIA-A100-SXM4-40GB", 8),
    "4 x L4": ("NVIDIA-L4", 4),
}
RANGES = ((1, 8), (4, 16), (8, 64), (16, 16), (128, 128))
HEADER = (
    "| model | node | nodes | tensor, pipeline, shard | recomputed | sizes filled | runs out | step on the most | "
    "fastest for that size alone | slower by |\n|---|---|---|---|---|---|---|---|---|---|"
)


def node(name: str, count: int) -> NodeShape:
    entry = gpus.find(name)
    if entry is None:
        raise LookupError(f"the catalogue has no {name}")
    return accelerator_node(entry, count, cores=96, host_memory_bytes=0, precision="BF16")


def line(model: str, machine: str, least: int, most: int) -> str | None:
    """None where nothing fits."""
    inventory = Inventory(node(*MACHINES[machine]), least, most)
    try:
        path = plan(MODELS[model], TRAINED, inventory)
    except PlanError:
        return None
    alone = fastest(MODELS[model], TRAINED, replace(inventory, min_nodes=most))
    useful = [planned for planned in path.rungs if planned.rung.useful]
    largest = useful[-1]
    rung = largest.rung
    seconds = alone.seconds_of_best if alone is not None else largest.step_seconds
    slower = max(0.0, largest.step_seconds / seconds - 1)
    schedule = f" ({rung.schedule})" if rung.pipeline > 1 else ""
    begins = f", from {useful[0].rung.nodes}" if useful[0].rung.nodes > least else ""
    return (
        f"| {model} | {machine} | {_sizes(least, most)} | {rung.tensor}, {rung.pipeline}, {rung.shard}{schedule} | "
        f"{rung.activation_checkpointing} | {len(useful)} of {len(path.rungs)}{begins} | {_odds(largest)} | "
        f"{human_seconds(largest.step_seconds)} | {human_seconds(seconds)} | {100 * slower:.0f} % |"
    )


def _sizes(least: int, most: int) -> str:
    return f"{most}" if least == most else f"{least}..{most}"


def _odds(planned: PlannedRung) -> str:
    share = p_oom(planned.memory, planned.available_bytes)
    return "< 0.1 %" if share < 0.001 else f"{100 * share:.1f} %"


def table() -> str:
    lines: list[str] = []
    without: dict[str, list[str]] = {}
    for machine in MACHINES:
        for model in MODELS:
            for least, most in RANGES:
                found = line(model, machine, least, most)
                if found is None:
                    without.setdefault(f"{model} on nodes of {machine}", []).append(_sizes(least, most))
                else:
                    lines.append(found)
    nothing = "; ".join(f"{what}: {', '.join(sizes)}" for what, sizes in without.items())
    return "\n".join([HEADER, *lines, "", f"Nothing fits: {nothing}."])


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.planner_paths",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--page", type=Path, help="where to put the table")
    given = parser.parse_args()
    started = time.process_time()
    text = table()
    print(text)
    print(f"{time.process_time() - started:.1f} s of one core", file=sys.stderr)
    if given.page:
        given.page.write_text(with_section(given.page.read_text(), SECTION, text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
