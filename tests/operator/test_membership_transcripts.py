"""The golden transcripts are exactly what membership says, and every line of them is valid protocol."""

from __future__ import annotations

import json

import pytest
from tests.operator.membership_stories import FOLDER, STORIES, transcript

from trainingrun.protocol import wire
from trainingrun.protocol.messages import Directive, JoinReply, JoinRequest, Poll, Report, RunView
from trainingrun.protocol.records import Epoch

REQUESTS = {"join": JoinRequest, "report": Report, "poll": Poll, "create": Epoch}
REPLIES = {"join": JoinReply, "report": Directive, "poll": Directive}


@pytest.mark.parametrize("name", STORIES)
def test_the_story_is_told_as_in_its_golden_transcript(name):
    golden = (FOLDER / f"{name}.jsonl").read_text()
    assert transcript(STORIES[name]()).splitlines() == golden.splitlines(), (
        "run `PYTHONPATH=operator:. python -m tests.operator.membership_stories` and read the difference"
    )


@pytest.mark.parametrize("name", STORIES)
def test_every_line_of_a_transcript_survives_the_wire(name):
    for line in map(json.loads, (FOLDER / f"{name}.jsonl").read_text().splitlines()):
        if "view" in line:
            assert wire.to_json(wire.from_json(RunView, line["view"])) == line["view"]
            continue
        assert wire.to_json(wire.from_json(REQUESTS[line["call"]], line["request"])) == line["request"]
        if "error" not in line.get("reply", {"error": ""}):
            reply = wire.from_json(REPLIES[line["call"]], line["reply"])
            assert wire.to_json(reply) == line["reply"]


def test_there_is_no_transcript_without_a_story():
    assert {path.stem for path in FOLDER.glob("*.jsonl")} == set(STORIES)
