"""The short report at the end of a local run: what was done, what was lost, and where the results are.

Some of its blocks serve `describe` of a run on a cluster as well.

Pure: everything is read from the run's status, its epochs, the last words of its pods and the held-out
figures. It adds nothing up that the controller has added up already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from trainingrun.cli.live import duration
from trainingrun.protocol.messages import Termination

PARTS = {
    "Start": "until the first step",
    "Queue": "waiting for nodes",
    "Detect": "faults not yet seen",
    "Restore": "recovering",
    "Redone": "steps trained again",
    "Checkpoint": "checkpoints and export",
    "Resize": "changes of size",
    "Control": "waiting for control plane",
    "Stop": "stopping",
}
SOURCES = {"Memory": "memory", "Durable": "a durable checkpoint", "Initial": "the initial weights"}


@dataclass(frozen=True)
class Report:
    run: str
    outcome: str  # Complete | Failed | Stopped
    step: int = 0
    total_steps: int = 0
    tokens: int = 0
    loss: float | None = None
    epochs: int = 0
    wall_seconds: float = 0.0
    productive_seconds: float = 0.0
    goodput_permille: int = 0
    lost_seconds: Mapping[str, float] = field(default_factory=dict)  # by part
    lost_steps: int = 0
    disruptions: Sequence[Mapping[str, Any]] = ()
    checkpoint: str = ""
    checkpoint_step: int = 0
    checkpoint_is_hearsay: bool = False  # from status alone: there may be a newer one
    export: str = ""
    failure: Mapping[str, Any] | None = None
    heldout: Mapping[str, float] | None = None
    logs: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Saved:
    """The newest checkpoint that is at a location; no URI: there is none."""

    uri: str = ""
    step: int = 0


def build_report(
    run: str,
    status: Mapping[str, Any],
    outcome: str,
    epochs: int,
    last_words: Termination | None,
    location: str,
    logs: str,
) -> Report:
    """`status` in API form; `location`: URI of the checkpoints; `last_words`: of the pod that finished."""
    progress = status.get("progress") or {}
    goodput = status.get("goodput") or {}
    disruptions = status.get("disruptions") or {}
    durable = (status.get("checkpoint") or {}).get("durable") or {}
    manifest = durable.get("manifest", "")
    failure = status.get("failure")
    export = (status.get("output") or {}).get("export", "")
    if last_words is not None:
        manifest, export = last_words.manifest or manifest, last_words.export or export
    if outcome == "Failed":
        failure = {"reason": reason_of(status, "Failed"), **(failure or {})}
    return Report(
        run=run,
        outcome=outcome,
        step=progress.get("step", 0),
        total_steps=progress.get("totalSteps", 0),
        tokens=progress.get("tokens", 0),
        loss=float(progress["loss"]) if "loss" in progress else None,
        epochs=epochs,
        wall_seconds=goodput.get("wallSeconds", 0),
        productive_seconds=goodput.get("productiveSeconds", 0),
        goodput_permille=goodput.get("permille", 0),
        lost_seconds={item["part"]: item["seconds"] for item in goodput.get("lost") or []},
        lost_steps=disruptions.get("lostSteps", 0),
        disruptions=list(disruptions.get("recent") or []),
        checkpoint_step=durable.get("step", 0),
        checkpoint=f"{location.rstrip('/')}/{manifest}" if manifest else "",
        export=export,
        failure=failure,
        logs=logs,
    )


def stopped(report: Report, wall_seconds: float, saved: Saved | None) -> Report:
    """The report of a run that was stopped: all the time until nothing of it ran any more, and what it goes on from.

    `saved`: the newest checkpoint at its location; None when nobody could look there, and status is all that is known.
    """
    wall = max(wall_seconds, report.wall_seconds)
    lost = {**report.lost_seconds, "Stop": round(wall - report.wall_seconds)}
    report = replace(
        report,
        wall_seconds=round(wall),
        goodput_permille=int(1000 * report.productive_seconds / wall) if wall else 0,
        lost_seconds={part: seconds for part, seconds in lost.items() if seconds},
    )
    if saved is None:
        return replace(report, checkpoint_is_hearsay=True)
    return replace(report, checkpoint=saved.uri, checkpoint_step=saved.step)


def condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The condition of that type; empty when there is none."""
    found = (item for item in status.get("conditions") or [] if item["type"] == kind)
    return next(found, {})


def reason_of(status: Mapping[str, Any], kind: str) -> str:
    found = condition(status, kind)
    return ": ".join(part for part in (found.get("reason", ""), found.get("message", "")) if part)


def render(report: Report) -> str:
    """The report as text, but for the held-out figures: short blocks, a line for each fact, no colour."""
    blocks = [_summary(report), _stopped(report), _lost(report), _disruptions(report), _places(report)]
    if report.failure is not None:
        blocks.append(failure_lines(report.failure))
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _summary(report: Report) -> list[str]:
    words = {"Complete": "is complete", "Failed": "failed", "Stopped": "was stopped"}
    loss = "-" if report.loss is None else f"{report.loss:.4f}"
    steps = f"{report.step}/{report.total_steps}" if report.total_steps else str(report.step)
    newest = "loss" if report.outcome == "Stopped" else "final loss"
    return [
        f"run {report.run} {words.get(report.outcome, report.outcome)}",
        f"  steps    {steps}   tokens {report.tokens:,}   {newest} {loss}   epochs {report.epochs}",
        f"  wall     {duration(report.wall_seconds)}   productive {duration(report.productive_seconds)}"
        f"   goodput {report.goodput_permille / 10:.1f} %",
    ]


def _stopped(report: Report) -> list[str]:
    """What stopping costs: memory is gone, so training goes on from the newest durable checkpoint."""
    if report.outcome != "Stopped":
        return []
    if not report.checkpoint:
        none = "no checkpoint is known of" if report.checkpoint_is_hearsay else "no checkpoint was saved yet"
        return [f"{none}: the run will begin again from step 0"]
    step = report.checkpoint_step
    again = (
        f"the {report.step - step} steps after it are trained again"
        if report.step > step
        else "no step is lost"
    )
    newest = "the newest durable checkpoint"
    if report.checkpoint_is_hearsay:
        newest += " known of (its location was not looked at), or from a newer one"
    return [f"it will go on from step {step}, {newest}: {again}"]


def lost_lines(lost_seconds: Mapping[str, float], wall_seconds: float) -> list[str]:
    """A line for each part of the time that was not productive, the largest first."""
    rows = [(PARTS.get(part, part), seconds) for part, seconds in lost_seconds.items() if seconds]
    rows.sort(key=lambda row: -row[1])
    width = max((len(name) for name, _ in rows), default=0)
    wall = wall_seconds or 1
    return [f"  {name:<{width}}  {seconds:>6.0f} s  {100 * seconds / wall:>5.1f} %" for name, seconds in rows]


def _lost(report: Report) -> list[str]:
    lines = lost_lines(report.lost_seconds, report.wall_seconds)
    count = len(report.disruptions)
    what = "1 disruption" if count == 1 else f"{count} disruptions"
    return ["what was lost", *lines, f"  steps trained again: {report.lost_steps} ({what})"]


def _disruptions(report: Report) -> list[str]:
    return ["disruptions", *map(_disruption, report.disruptions)] if report.disruptions else []


def _disruption(item: Mapping[str, Any]) -> str:
    millis = item.get("recoverMillis")
    took = "not recovered" if millis is None else f"next step after {millis / 1000:.1f} s"
    steps = item.get("lostSteps", 0)
    lost = "no step lost" if steps == 0 else f"{steps} step{'' if steps == 1 else 's'} lost"
    source = SOURCES.get(item["source"], item["source"])
    where = f" on {item['node']}" if item.get("node") else ""
    return f"  epoch {item['epoch']}: {item['cause']}{where}, {took}, restored from {source}, {lost}"


def _places(report: Report) -> list[str]:
    places = [("checkpoint", report.checkpoint), ("model", report.export), ("logs", report.logs)]
    return [f"{name:<10} {place}" for name, place in places if place]


def failure_lines(failure: Mapping[str, Any]) -> list[str]:
    """The first cause of a failed run: what, where, and the last output of who failed."""
    lines = [f"first cause: {failure.get('cause') or failure.get('reason', 'unknown')}"]
    if failure.get("cause") and failure.get("reason"):
        lines.append(f"  {failure['reason']}")
    where = [f"slot {failure['slot']}"] if failure.get("slot") is not None else []
    where += [f"node {failure['node']}"] if failure.get("node") else []
    where += [f"exit code {failure['exitCode']}"] if failure.get("exitCode") is not None else []
    if where:
        lines.append(f"  {', '.join(where)}")
    if failure.get("message"):
        lines += ["  its last output:", *(f"    {line}" for line in failure["message"].splitlines())]
    return lines


def heldout_line(figures: Mapping[str, float]) -> str:
    """`held-out loss 3.10 nats/token | unigram 5.52 | bigram 3.41 (entropies of the same … tokens): below …`."""
    loss, bigram = figures["heldout_loss"], figures["bigram_entropy"]
    verdict = "below the bigram's" if loss < bigram else "not below the bigram's"
    learned = figures.get("bigram_cross_entropy")
    table = "" if learned is None else f"; a bigram table of the training tokens reaches {learned:.3f}"
    held_out, measured = figures.get("heldout_tokens", 0), figures.get("measured_tokens", 0)
    sample = f", a sample of {held_out:,.0f}" if measured < held_out else ""
    return (
        f"held-out loss {loss:.3f} nats/token | unigram {figures['unigram_entropy']:.3f} "
        f"| bigram {bigram:.3f} (entropies of the same {figures['tokens']:,.0f} tokens{sample}): {verdict}{table}"
    )
