"""How long the planner takes, on one core of this machine.

    python -m benchmarks.planner_search [--repeat 3]

Prints, beside what they should stay below, in seconds of a core (waiting for others does not count): the time of one
configuration (its memory and its time), of the full search for 1,024 accelerators (ours, and what-if layouts of a model
with experts), and of paths of 64 sizes. Each is the median of its turns, in a process in which nothing is remembered
from other turns.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from trainingrun.planner.candidates import split
from trainingrun.planner.cost.types import Numerics
from trainingrun.planner.fastest import all_groups, fastest
from trainingrun.planner.hardware import gpus
from trainingrun.planner.hardware.machine import machine
from trainingrun.planner.inputs import accelerator_node
from trainingrun.planner.memory import fits, memory_bill
from trainingrun.planner.search import plan
from trainingrun.planner.time import predict
from trainingrun.planner.types import Experts, Inventory, ModelShape, NodeShape, TrainingShape
from trainingrun.planner.what_if import Question, what_if

GPU = "NVIDIA-H100-80GB-HBM3"
LLAMA_70B = ModelShape(
    model_type="llama",
    hidden_size=8192,
    intermediate_size=28672,
    layers=80,
    attention_heads=64,
    key_value_heads=8,
    head_dim=128,
    vocabulary_size=128256,
    tied_embeddings=False,
    max_position_embeddings=8192,
)
LLAMA_8B = replace(
    LLAMA_70B, hidden_size=4096, intermediate_size=14336, layers=32, attention_heads=32, head_dim=128
)
MIXTRAL_8X22B = replace(
    LLAMA_70B,
    model_type="mixtral",
    hidden_size=6144,
    intermediate_size=16384,
    layers=56,
    attention_heads=48,
    vocabulary_size=32000,
    experts=Experts(8, 2, 16384),
)
TRAINING = TrainingShape(
    sequence_length=4096,
    global_batch_sequences=2048,
    parameter_bytes=4,
    compute_bytes=2,
    activation_checkpointing="Auto",
    any_schedule=True,
)


def node() -> NodeShape:
    entry = gpus.find(GPU)
    if entry is None:
        raise LookupError(f"the catalogue has no {GPU}")
    return accelerator_node(entry, 8, cores=96, host_memory_bytes=0, precision="BF16")


def configuration() -> tuple[float, str]:
    """Seconds of one, over many different ones of one model."""
    inventory = Inventory(node(), 1, 128)
    groups = all_groups(LLAMA_70B, TRAINING, inventory)[:2000]
    weighed, started = 0, time.process_time()
    for group in groups:
        for size in (1, 2):
            found = split(group.training, group.cut, group.replicate, micro_batch=size)
            if found is None:
                continue
            of = {"replicate": group.replicate, "micro_batch": size, "accumulation": found.accumulation}
            fits(memory_bill(LLAMA_70B, group.training, inventory.node, group.cut, **of), inventory.node)
            predict(LLAMA_70B, group.training, inventory.node, group.cut, **of)
            weighed += 1
    return (time.process_time() - started) / weighed, f"{weighed} configurations"


def full_search() -> tuple[float, str]:
    started = time.process_time()
    choice = fastest(LLAMA_70B, TRAINING, Inventory(node(), 128, 128))
    seconds = time.process_time() - started
    return seconds, f"{choice.groups if choice else 0} cuts, each with all its micro-batches"


def experts() -> tuple[float, str]:
    question = Question(
        MIXTRAL_8X22B, 4096, 2048, machine("H100-SXM-80GB", 8), 128, numerics=Numerics("bf16")
    )
    started = time.process_time()
    outcome = what_if(question)
    seconds = time.process_time() - started
    return seconds, f"{outcome.groups} layouts, {outcome.opened} opened, {outcome.weighed} weighed"


def path() -> tuple[float, str]:
    return _path(LLAMA_8B)


def large_path() -> tuple[float, str]:
    return _path(LLAMA_70B)


def _path(model: ModelShape) -> tuple[float, str]:
    started = time.process_time()
    found = plan(model, TRAINING, Inventory(node(), 1, 64))
    useful = sum(planned.rung.useful for planned in found.rungs)
    return time.process_time() - started, f"{len(found.rungs)} sizes of 8 accelerators, {useful} of use"


TURNS: dict[str, tuple[Callable[[], tuple[float, str]], float, str]] = {
    "configuration": (configuration, 0.2e-3, "one configuration"),
    "search": (full_search, 2.0, "full search, 1,024 accelerators"),
    "experts": (experts, 2.0, "what-if with experts, 1,024 accelerators"),
    "path": (path, 5.0, "path of 64 sizes, 8B"),
    "large-path": (large_path, 5.0, "path of 64 sizes, 70B"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner_search", description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="turns of each")
    parser.add_argument("--one", choices=TURNS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        seconds, what = TURNS[given.one][0]()
        print(f"{seconds!r}\t{what}")
        return 0
    missed = 0
    for name, (_, bar, title) in TURNS.items():
        command = [sys.executable, "-m", "benchmarks.planner_search", "--one", name]
        turns = []
        for _ in range(max(1, given.repeat)):
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
            seconds, what = done.stdout.strip().split("\t")
            turns.append(float(seconds))
        median = statistics.median(turns)
        missed += median > bar
        print(
            f"{title:<42} {1000 * median:10.3f} ms   bar {1000 * bar:g} ms   "
            f"{'met' if median <= bar else 'MISSED'}   ({what})"
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
