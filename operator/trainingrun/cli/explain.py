"""The text of `trainingrun explain`: reasons, the memory bill as bars, where the time goes, and the
neighbours.
"""

from __future__ import annotations

from dataclasses import replace

from trainingrun.cli.output import bar, table
from trainingrun.planner.layout import Cut
from trainingrun.planner.memory import host_available_bytes, margin_bytes
from trainingrun.planner.neighbours import neighbours
from trainingrun.planner.text import counted, human_bytes, human_count, human_seconds
from trainingrun.planner.time import flops_equation, predict
from trainingrun.planner.types import Inventory, ModelShape, PlannedRung, PlanPath, TrainingShape

PARTS = (
    ("weights", "this rank's shard"),
    ("gradients", "of its shard"),
    ("optimizer", "what the update keeps"),
    ("activations", "kept for the backward pass"),
    ("logits", "up to four copies in the loss"),
    ("buffers", "gathered blocks and messages"),
    ("reserved", "interpreter and libraries"),
    ("snapshots", "two, and a copy to save from, in the pod's memory"),
    ("buddies", "two snapshots of the next node, in the pod's memory"),
)


def explanation(
    name: str,
    path: PlanPath,
    planned: PlannedRung,
    model: ModelShape,
    training: TrainingShape,
    inventory: Inventory,
) -> str:
    rung = planned.rung
    training = replace(training, activation_checkpointing=rung.activation_checkpointing)  # as it was chosen
    mesh = mesh_equation(rung.tensor, rung.shard, rung.pipeline, rung.replicate, rung.context)
    heading = f"{name} on {counted(rung.nodes, 'node')}: {mesh}; {human_count(path.parameters)} parameters"
    return "\n".join(
        [
            heading,
            "",
            "Why",
            *(f"  {reason}" for reason in (path.reason, *planned.reasons)),
            "",
            *_memory(planned, inventory),
            "",
            *_time(planned, model, training, inventory),
            "",
            "Neighbours",
            *_neighbours(planned, model, training, inventory),
        ]
    )


def mesh_equation(tensor: int, shard: int, pipeline: int, replicate: int, context: int = 1) -> str:
    """The axes of the mesh, the fastest first, and their product. Context only where there is more than one."""
    world = tensor * context * shard * replicate * pipeline
    inner = f"tensor {tensor} x " + (f"context {context} x " if context > 1 else "")
    return f"{inner}shard {shard} x pipeline {pipeline} x replicate {replicate} = {world} processes"


def _memory(planned: PlannedRung, inventory: Inventory) -> list[str]:
    """One line a part: bytes, share of the limit as a bar, what it is."""
    bill, limit = planned.memory, planned.available_bytes
    rows = [(part, getattr(bill, part), note) for part, note in PARTS if getattr(bill, part)]
    margin = margin_bytes(inventory.node)
    rows.append(("kept free", margin, "models err by a few percent"))
    rows.append(("unused", limit - margin - bill.total, ""))
    lines = [f"Memory of the fullest process: {human_bytes(bill.total)} of {human_bytes(limit)}"]
    for part, count, note in rows:
        share = count / limit
        figures = f"{human_bytes(max(0, count)):>9} {count:>15,} B {100 * share:5.1f} %"
        lines.append(f"  {part:<11} {figures}  {bar(share):<40}  {note}".rstrip())
    if bill.host and inventory.node.host_memory_bytes:
        there = host_available_bytes(inventory.node)
        lines.append(
            f"  beside the accelerators, snapshots of a node{_and_of_a_buddy(planned)}: "
            f"{human_bytes(bill.host * inventory.node.processes)} of {human_bytes(there)} of host memory"
        )
    return lines


def _and_of_a_buddy(planned: PlannedRung) -> str:
    return " and of its buddy" if planned.rung.buddies else ""


def _time(
    planned: PlannedRung, model: ModelShape, training: TrainingShape, inventory: Inventory
) -> list[str]:
    rung = planned.rung
    times = predict(
        model,
        training,
        inventory.node,
        Cut(rung.pipeline, rung.shard, rung.tensor, rung.context, rung.schedule),
        replicate=rung.replicate,
        micro_batch=rung.micro_batch,
        accumulation=rung.accumulation,
    )
    rows = (
        ("compute", times.compute),
        ("bubble", times.bubble_seconds),
        ("communication", times.communication),
        ("optimizer", times.optimizer),
    )
    lines = [
        f"Step: {human_seconds(times.total)}, {planned.tokens_per_second:.0f} tokens/s, "
        f"{100 * planned.flops_utilisation:.0f} % of what the processes can reach (predicted, not measured)"
    ]
    lines += [
        f"  {part:<13} {human_seconds(seconds):>8} {100 * share:5.1f} %  {bar(share)}".rstrip()
        for part, seconds in rows
        for share in [seconds / times.total]
    ]
    return [*lines, f"  {flops_equation(model, training)}"]


def _neighbours(
    planned: PlannedRung, model: ModelShape, training: TrainingShape, inventory: Inventory
) -> list[str]:
    rows = [
        (
            "this plan",
            human_bytes(planned.memory.total),
            human_seconds(planned.step_seconds),
            str(planned.rung.state_copies),
            "",
        )
    ]
    rows += [
        (
            near.name,
            human_bytes(near.memory_bytes) if near.memory_bytes else "-",
            human_seconds(near.step_seconds) if near.step_seconds else "-",
            str(near.state_copies) if near.state_copies else "-",
            f"not possible: {near.why_not}" if near.why_not else "",
        )
        for near in neighbours(model, training, inventory, planned)
    ]
    text = table(("PLAN", "MEMORY", "STEP", "COPIES", ""), rows)
    return [f"  {line}".rstrip() for line in text.splitlines()]
