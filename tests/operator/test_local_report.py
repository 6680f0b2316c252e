"""The report at the end of a local run, from a canned status."""

from __future__ import annotations

import json
from typing import Any

from tests.operator.status_builders import a_status, over

from trainingrun.cli.report import Report, Saved, build_report, heldout_line, render, stopped
from trainingrun.protocol.messages import Termination

STATUS: dict[str, Any] = a_status(
    conditions=over("Complete"),
    progress={"step": 300, "totalSteps": 300, "tokens": 1228800, "loss": "3.4123"},
    checkpoint={"durable": {"step": 300, "epoch": 3, "manifest": "step-00000300.e0003"}},
    goodput={
        "permille": 871,
        "wallSeconds": 100,
        "productiveSeconds": 87,
        "lost": [
            {"part": "Start", "seconds": 10},
            {"part": "Restore", "seconds": 2},
            {"part": "Redone", "seconds": 1},
        ],
    },
    output={"export": "file:///models/demo"},
)
HELDOUT = {"heldout_loss": 3.1, "unigram_entropy": 5.52, "bigram_entropy": 3.41, "tokens": 131072}


def a_report(status: dict[str, Any] = STATUS, outcome: str = "Complete", words: Any = None) -> Report:
    return build_report("demo", status, outcome, 3, words, "file:///checkpoints/demo", "/state/logs")


def test_the_report_says_what_was_done_and_where_it_is() -> None:
    text = render(a_report())
    assert "run demo is complete" in text
    assert "steps    300/300   tokens 1,228,800   final loss 3.4123   epochs 3" in text
    assert "wall     1m40s   productive 1m27s   goodput 87.1 %" in text
    assert "checkpoint file:///checkpoints/demo/step-00000300.e0003" in text
    assert "model      file:///models/demo" in text


def test_what_was_lost_is_a_table_of_seconds_by_part_the_largest_first() -> None:
    lines = render(a_report()).splitlines()
    start = lines.index("what was lost")
    assert [line.split()[-4] for line in lines[start + 1 : start + 4]] == ["10", "2", "1"]
    assert "until the first step" in lines[start + 1]
    assert "10.0 %" in lines[start + 1]
    assert "steps trained again: 1 (1 disruption)" in lines[start + 4]


def test_each_disruption_is_one_line() -> None:
    assert (
        "epoch 2: Infrastructure on node-1, next step after 1.8 s, restored from memory, 1 step lost"
    ) in render(a_report())


def test_a_disruption_that_was_not_recovered_from_says_so() -> None:
    entry = {"epoch": 4, "cause": "Application", "node": "", "source": "Durable", "lostSteps": 0}
    status = {**STATUS, "disruptions": {"lostSteps": 0, "recent": [entry]}}
    line = "epoch 4: Application, not recovered, restored from a durable checkpoint, no step lost"
    assert line in render(a_report(status))


def test_the_last_words_of_the_run_count_more_than_a_status_that_lags() -> None:
    words = Termination(0, "Done", manifest="step-00000300.e0009", export="file:///models/other")
    report = a_report(words=words)
    assert (report.checkpoint, report.export) == (
        "file:///checkpoints/demo/step-00000300.e0009",
        "file:///models/other",
    )


def test_a_failed_run_names_the_first_cause_and_the_last_output() -> None:
    status = {
        "conditions": [
            {"type": "Failed", "status": "True", "reason": "RestartBudgetSpent", "message": "Application: 4"}
        ],
        "failure": {
            "cause": "Application",
            "slot": 1,
            "node": "node-1",
            "exitCode": 1,
            "message": "Traceback\nValueError: x",
        },
    }
    text = render(a_report(status, "Failed"))
    assert "run demo failed" in text
    assert "first cause: Application" in text
    assert "RestartBudgetSpent: Application: 4" in text
    assert "slot 1, node node-1, exit code 1" in text
    assert "    ValueError: x" in text


def test_a_failure_without_a_cause_gives_its_reason() -> None:
    message = "spec.scale: nothing fits"
    condition = {"type": "Failed", "status": "True", "reason": "PlanInfeasible", "message": message}
    text = render(a_report({"conditions": [condition]}, "Failed"))
    assert "first cause: PlanInfeasible: spec.scale: nothing fits" in text


def test_a_run_that_never_began_has_a_report_too() -> None:
    text = render(a_report({}, "Stopped"))
    assert "run demo was stopped" in text
    assert "   loss -" in text
    assert "will begin again from step 0" in text
    assert "\ncheckpoint " not in text


def test_a_stopped_run_names_the_checkpoint_that_is_there_and_all_the_time_that_passed():
    """Status is older than both: the run was stopped at 110.4 s, and a checkpoint was committed in the meantime."""
    status = {
        **STATUS,
        "checkpoint": {"durable": {"step": 200, "epoch": 3, "manifest": "step-00000200.e0003"}},
    }
    before = a_report(status, "Stopped")
    report = stopped(before, 110.4, Saved("file:///checkpoints/demo/step-00000250.e0003", 250))
    text = render(report)
    assert (
        "go on from step 250, the newest durable checkpoint: the 50 steps after it are trained again" in text
    )
    assert "checkpoint file:///checkpoints/demo/step-00000250.e0003" in text
    assert "wall     1m50s   productive 1m27s   goodput 78.8 %" in text
    assert report.lost_seconds == {**before.lost_seconds, "Stop": 10}
    assert report.productive_seconds + sum(report.lost_seconds.values()) == report.wall_seconds
    gone = render(stopped(before, 110.4, Saved()))
    assert "no checkpoint was saved yet" in gone
    assert "\ncheckpoint " not in gone


def test_where_nobody_can_look_a_stopped_run_says_that_there_may_be_a_newer_checkpoint():
    text = render(stopped(a_report(outcome="Stopped"), 90.0, None))
    assert "from step 300, the newest durable checkpoint known of" in text
    assert "or from a newer one" in text
    assert "wall     1m40s" in text  # a clock that was set back takes nothing away
    none = render(stopped(a_report({}, "Stopped"), 5.0, None))
    assert "no checkpoint is known of: the run will begin again from step 0" in none


def test_the_held_out_loss_is_beside_the_entropies_of_the_same_tokens() -> None:
    line = heldout_line(HELDOUT)
    assert "held-out loss 3.100 nats/token | unigram 5.520 | bigram 3.410" in line
    assert "same 131,072 tokens" in line
    assert line.endswith("below the bigram's")
    assert heldout_line({**HELDOUT, "heldout_loss": 3.5}).endswith("not below the bigram's")
    sampled = heldout_line({**HELDOUT, "measured_tokens": 131136, "heldout_tokens": 9_000_000})
    assert "same 131,072 tokens, a sample of 9,000,000)" in sampled
    learned = heldout_line({**HELDOUT, "bigram_cross_entropy": 4.2})
    assert learned.endswith("; a bigram table of the training tokens reaches 4.200")


def test_the_report_is_json_with_every_figure() -> None:
    data = json.loads(json.dumps(a_report().to_json()))
    assert data["lost_seconds"] == {"Start": 10, "Restore": 2, "Redone": 1}
    assert data["disruptions"][0]["node"] == "node-1"
    assert data["outcome"] == "Complete"
