"""Whole stories as golden transcripts: what agents and membership say to each other, line by line.

`python -m tests.operator.membership_stories` (with PYTHONPATH=operator:.) writes them all anew to
tests/golden/membership; read the difference before you keep it. A line is one exchange, or the creation of a
record. Reports that say nothing new and are told nothing new are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.operator.membership_world import World

from trainingrun.protocol import wire
from trainingrun.protocol.messages import AgentPhase, Directive, DurableCheckpoint, Poll, Report

FOLDER = Path(__file__).resolve().parent.parent / "golden" / "membership"


def first_start() -> World:
    world = World()
    world.agent(0)
    world.agent(1, warm_seconds=0.4)
    return world.pass_time(1.5)


def rank_death() -> World:
    world = World().running(2)
    world.agents[1].rank_dies(message="RuntimeError: CUDA error")
    return world.pass_time(1.0)


def node_loss_and_shrink() -> World:
    world = World(sizes=(1, 2, 3)).running(3)
    world.agents[2].kill()
    return world.pass_time(2.0)


def growth_with_pause() -> World:
    world = World(hold=1.0)
    world.agent(0)
    world.pass_time(12)
    world.agent(1, warm_seconds=0.5)
    return world.pass_time(2.5)


def membership_restart() -> World:
    world = World().running(2)
    world.service_stopped(5, agents_go_on=True)
    world.service.start()
    world.pass_time(1)
    world.agents[0].rank_dies()
    return world.pass_time(1)


def damaged_checkpoint() -> World:
    world = World(sizes=(1,))
    world.durable = [DurableCheckpoint(f"step-{step:08d}.e0001", 1, step) for step in (100, 200)]
    world.agent(0, steps=False)
    world.pass_time(1)
    world.agents[0].rank_dies(65, "item 3 of step-00000200.e0001: wrong checksum", "step-00000200.e0001")
    world.pass_time(1)
    world.agents[0].rank_dies(65, "item 0 of step-00000100.e0001: wrong checksum", "step-00000100.e0001")
    return world.pass_time(2)


def completion() -> World:
    world = World().running(2)
    world.agents[1].phase = AgentPhase.DONE
    world.pass_time(0.5)
    world.agents[0].phase = AgentPhase.DONE
    return world.pass_time(1)


STORIES: dict[str, Callable[[], World]] = {
    story.__name__.replace("_", "-"): story
    for story in (
        first_start,
        rank_death,
        node_loss_and_shrink,
        growth_with_pause,
        membership_restart,
        damaged_checkpoint,
        completion,
    )
}


def transcript(world: World) -> str:
    """JSON lines; times are seconds since the world began."""
    lines, said = [], {}
    for at, kind, request, reply in world.transcript:
        if isinstance(request, Report):
            news = (request.phase, request.epoch, request.prepared, request.damaged, _seq(reply))
            if said.get(request.session) == news:
                continue
            said[request.session] = news
        if isinstance(request, Poll) and _seq(reply) in (None, request.seen):
            continue
        line = {"at": round(at - 100.0, 2), "call": kind, "request": wire.to_json(request)}
        if reply is not None:
            line["reply"] = wire.to_json(reply)
        lines.append(json.dumps(line))
    lines.append(json.dumps({"view": wire.to_json(world.service.view)}))
    return "\n".join(lines) + "\n"


def _seq(reply: Any) -> int | None:
    return reply.seq if isinstance(reply, Directive) else None


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, story in STORIES.items():
        (FOLDER / f"{name}.jsonl").write_text(transcript(story()))
        print(f"wrote {name}.jsonl")


if __name__ == "__main__":
    main()
