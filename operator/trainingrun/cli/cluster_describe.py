"""The story of one run on one screen, as text. Pure: from a Story to lines; nothing is worked out that the
controller has worked out already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainingrun.api.constants import ConditionType
from trainingrun.cli.cluster_events import events_table
from trainingrun.cli.cluster_pods import pods_table
from trainingrun.cli.cluster_state import done_at, outcome_of, state_word, steps_text, worries
from trainingrun.cli.cluster_story import Story
from trainingrun.cli.cluster_timeline import timeline_table
from trainingrun.cli.cluster_times import age, clock, created_of
from trainingrun.cli.explain import mesh_equation
from trainingrun.cli.live import duration
from trainingrun.cli.output import bar, indented, one_line
from trainingrun.cli.report import condition, failure_lines, lost_lines
from trainingrun.cluster.kubernetes.objects import seconds
from trainingrun.planner.text import counted, human_bytes

PODS = 12
EVENTS = 8
_MIB = 2**20
_MESSAGE = 160  # characters of an event or a condition


def render_story(story: Story, now: float, epochs: int) -> str:
    """`epochs`: how many of the newest to show."""
    facts = [
        ("State", _state(story, now)),
        ("Size", _size(story)),
        ("Plan", _plan(story.status.get("plan"))),
        ("Progress", _progress(story, now)),
        ("Checkpoints", _checkpoints(story, now)),
        ("Disruptions", _disruptions(story.status.get("disruptions"))),
        ("Goodput", _goodput(story.status.get("goodput"))),
        ("Model", [str((story.status.get("output") or {}).get("export", ""))]),
    ]
    lines = [_heading(story, now)]
    for name, texts in facts:
        texts = [text for text in texts if text]
        lines += [f"{name if i == 0 else '':<12} {text}" for i, text in enumerate(texts)]
    blocks = ["\n".join(lines)]
    blocks += [block for block in (_failure(story), _worries(story), _notes(story)) if block]
    if story.epochs:
        shown = story.epochs[-epochs:] if epochs else story.epochs
        few = "" if len(shown) == len(story.epochs) else f" (the newest {len(shown)} of {len(story.epochs)})"
        blocks.append(f"Epochs{few}\n{indented(timeline_table(shown, now))}")
    if story.pods:
        blocks.append(f"Pods\n{indented(pods_table(story.pods, now, PODS))}")
    told = [one for one in story.events if one.object == "run" or one.type == "Warning"][-EVENTS:]
    if told:
        blocks.append(f"Newest events\n{indented(events_table(told, now, _MESSAGE))}")
    return "\n\n".join(blocks)


def _heading(story: Story, now: float) -> str:
    meta = story.run["metadata"]
    task = story.spec.get("task", "")
    parts = [f"{meta['name']} in {meta['namespace']}", task, f"created {age(created_of(story.run), now)} ago"]
    revision = (story.status.get("resolved") or {}).get("revision", "")
    return ", ".join(part for part in [*parts, f"revision {revision}" if revision else ""] if part)


def _state(story: Story, now: float) -> list[str]:
    ready = condition(story.status, ConditionType.READY)
    text = state_word(story.run)
    message = one_line(ready.get("message", ""))
    since = seconds(ready.get("lastTransitionTime"))
    outcome = outcome_of(story.status)
    if outcome:
        ended = seconds(condition(story.status, outcome).get("lastTransitionTime"))
        since_when = f"{outcome} {age(ended, now)} ago"
    else:
        state = "ready" if ready.get("status") == "True" else "not ready"
        since_when = f"{state} for {age(since, now)}" if since else ""
    return [f"{text}: {message}" if message else text, since_when]


def _size(story: Story) -> list[str]:
    scale, membership = story.spec.get("scale") or {}, story.status.get("membership")
    least, most = scale.get("minNodes", "?"), scale.get("maxNodes", "?")
    asked = f"minNodes {least}, maxNodes {most}"
    if not membership:
        return [f"no nodes yet; {asked}"]
    nodes = membership["nodes"]
    training, _, wanted = membership["summary"].partition("/")
    others = [f"{nodes[key]} {key}" for key in ("joining", "pending", "terminating") if nodes.get(key)]
    counts = ", ".join([f"{training} of {counted(int(wanted or 0), 'node')} train", *others])
    return [f"{counts}; {asked}"]


def _plan(plan: Mapping[str, Any] | None) -> list[str]:
    if not plan:
        return []
    axes = plan["axes"]
    inner = (axes.get(axis, 1) for axis in ("shard", "pipeline", "replicate", "context"))
    mesh = mesh_equation(axes["tensor"], *inner)
    padding = plan.get("paddingPermille", 0)
    padded = f", {padding / 10:.1f} % padding" if padding else ""
    memory, available = (human_bytes(plan[key] * _MIB) for key in ("memoryMiB", "availableMiB"))
    copies = plan["stateCopies"]
    survives = (
        "a lost node costs the steps since the newest durable checkpoint"
        if copies < 2
        else f"{counted(copies - 1, 'node')} may be lost at once without going back to a durable checkpoint"
    )
    predicted = plan["predictedStepMillis"]
    measured = plan.get("stepMillis")
    step = (
        f"{measured} ms a step, {predicted} ms predicted" if measured else f"{predicted} ms a step predicted"
    )
    return [
        f"{counted(plan['nodes'], 'node')}: {mesh}",
        f"micro-batch {plan['microBatch']} x {plan['accumulation']}{padded}; {step}",
        f"memory {memory} of {available} a process, predicted",
        f"{counted(copies, 'copy') if copies == 1 else f'{copies} copies'} of the state: {survives}",
        f"why: {plan['reason']}" if plan.get("reason") else "",
    ]


def _progress(story: Story, now: float) -> list[str]:
    progress = story.status.get("progress")
    if not progress:
        return ["no step yet"]
    total = progress["totalSteps"]
    share = progress["step"] / total if total else 0.0
    done = done_at(story.status)
    eta = f"; done in {duration(max(0.0, done - now))} ({clock(done, now)})" if done is not None else ""
    return [
        f"step {steps_text(story.status)} [{bar(share, 30):<30}] {100 * share:.0f} %{eta}",
        f"loss {float(progress['loss']):.4f}, {progress['tokensPerSecond']:,} tokens/s, "
        f"{progress['tokens']:,} tokens; heard {age(seconds(progress['updateTime']), now)} ago",
    ]


def _checkpoints(story: Story, now: float) -> list[str]:
    known = story.status.get("checkpoint") or {}
    location = ((story.spec.get("checkpoint") or {}).get("location") or {}).get("uri", "")
    durable = known.get("durable")
    texts = []
    if durable:
        since = (story.status.get("accounting") or {}).get("durableSince")
        when = f", saved {age(float(since), now)} ago" if since else ""
        texts.append(f"durable: step {durable['step']}{when}: {location.rstrip('/')}/{durable['manifest']}")
    elif location:
        texts.append(f"durable: none yet at {location}")
    if "memoryStep" in known:
        texts.append(f"memory: step {known['memoryStep']}")
    return texts


def _disruptions(found: Mapping[str, Any] | None) -> list[str]:
    if not found:
        return []
    causes = ", ".join(f"{item['cause']} {item['count']}" for item in found.get("byCause") or [])
    return [f"{causes}; {counted(found.get('lostSteps', 0), 'step')} trained again" if causes else "none"]


def _goodput(goodput: Mapping[str, Any] | None) -> list[str]:
    if not goodput or not goodput["wallSeconds"]:
        return []
    lost = {item["part"]: item["seconds"] for item in goodput.get("lost") or []}
    wall = goodput["wallSeconds"]
    first = (
        f"{goodput['permille'] / 10:.1f} %: {duration(goodput['productiveSeconds'])} of {duration(wall)} "
        "were steps that counted"
    )
    return [first, *lost_lines(lost, wall)]


def _failure(story: Story) -> str:
    failure = story.status.get("failure")
    if not failure:
        return ""
    return "\n".join("".join(one for one in line if one.isprintable()) for line in failure_lines(failure))


def _worries(story: Story) -> str:
    lines = [
        f"  {one['type']} is {one['status']}, {one['reason']}: {one_line(one.get('message', ''), _MESSAGE)}"
        for one in worries(story.run)
    ]
    return "\n".join(["Not as it should be", *lines]) if lines else ""


def _notes(story: Story) -> str:
    return "\n".join(f"note: {one_line(text, 2 * _MESSAGE)}" for text in story.notes)
