"""Setting one condition, and the ones that a run begins with."""

from __future__ import annotations

from trainingrun.api.conditions import (
    MESSAGE_LIMIT,
    find_condition,
    initial_conditions,
    is_true,
    set_condition,
    timestamp,
)
from trainingrun.api.constants import ConditionType, Reason

NOON = 1_796_040_000.0


def test_a_time_is_written_in_utc_with_whole_seconds() -> None:
    assert timestamp(0) == "1970-01-01T00:00:00Z"
    assert timestamp(NOON + 0.9) == timestamp(NOON) == "2026-11-30T12:00:00Z"


def test_every_condition_is_there_from_the_beginning_and_unknown() -> None:
    conditions = initial_conditions(1, NOON)
    assert [condition["type"] for condition in conditions] == [type.value for type in ConditionType]
    assert {condition["status"] for condition in conditions} == {"Unknown"}
    assert {condition["observedGeneration"] for condition in conditions} == {1}


def test_the_transition_time_changes_with_the_status_only() -> None:
    before = initial_conditions(1, NOON)
    ready = set_condition(before, ConditionType.READY, "True", Reason.TRAINING, "2 of 2 nodes", 1, NOON + 60)
    later = set_condition(ready, ConditionType.READY, "True", Reason.GROWING, "1 of 2 nodes", 2, NOON + 90)
    condition = find_condition(later, "Ready")
    assert condition == {
        "type": "Ready",
        "status": "True",
        "reason": "Growing",
        "message": "1 of 2 nodes",
        "observedGeneration": 2,
        "lastTransitionTime": timestamp(NOON + 60),
    }
    lost = set_condition(later, ConditionType.READY, "False", Reason.RECOVERING, "", 2, NOON + 120)
    assert find_condition(lost, "Ready")["lastTransitionTime"] == timestamp(NOON + 120)  # type: ignore[index]


def test_other_conditions_and_their_order_stay() -> None:
    before = initial_conditions(1, NOON)
    after = set_condition(before, ConditionType.STALLED, "True", Reason.NO_PROGRESS, "", 1, NOON + 1)
    assert [one["type"] for one in after] == [one["type"] for one in before]
    assert [one for one in after if one["type"] != "Stalled"] == [
        one for one in before if one["type"] != "Stalled"
    ]
    assert find_condition(before, "Stalled")["status"] == "Unknown"  # type: ignore[index]
    assert is_true(after, "Stalled")
    assert not is_true(before, "Stalled")


def test_a_condition_that_was_not_there_is_added() -> None:
    conditions = set_condition([], ConditionType.FAILED, "True", Reason.BAD_CONFIGURATION, "", 1, NOON)
    assert [condition["type"] for condition in conditions] == ["Failed"]


def test_setting_the_same_condition_again_changes_nothing() -> None:
    once = set_condition([], ConditionType.READY, "True", Reason.TRAINING, "ok", 1, NOON)
    assert set_condition(once, ConditionType.READY, "True", Reason.TRAINING, "ok", 1, NOON + 100) == once


def test_a_message_that_is_too_long_is_cut() -> None:
    conditions = set_condition([], "Ready", "False", Reason.PENDING, "x" * 5000, 1, NOON)
    assert len(conditions[0]["message"]) == MESSAGE_LIMIT
    assert conditions[0]["message"].endswith("x…")


def test_words_of_the_api_are_camel_case() -> None:
    for word in (*ConditionType, *Reason):
        assert word.value[0].isupper()
        assert word.value.isalnum()


def test_a_message_is_one_line_whatever_it_is_made_of() -> None:
    text = "spec.a: wrong\n  hint: write 1\n\nspec.b: also:\n  more"
    [condition] = set_condition([], "Ready", "False", "InvalidSpec", text, 1, 0.0)
    assert condition["message"] == "spec.a: wrong; hint: write 1; spec.b: also: more"
