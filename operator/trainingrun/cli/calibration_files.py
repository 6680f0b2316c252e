"""Files of measurements: written by `trainingrun calibration export`, read by `--calibration`. JSON, one document.

    {"kind": "TrainingRunCalibration", "version": 1, "measurements": [{"engine": "Native", ...}]}

A file that is not of this form, or has a number that cannot be, is refused with the entry and the field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainingrun.api.errors import Missing, UserError
from trainingrun.planner.feedback import Measurement, Names

KIND, VERSION = "TrainingRunCalibration", 1
_NAMES = ("engine", "hardware", "model", "layout")
_COUNTS = ("nodes", "steps", "peakBytes", "predictedPeakBytes")
_SECONDS = ("stepSeconds", "predictedStepSeconds")
_MOST = 2**53


class BadCalibration(UserError):
    """The message names the file, the field, its value and the fix."""


def calibration_document(measurements: Sequence[Measurement]) -> dict[str, Any]:
    return {"kind": KIND, "version": VERSION, "measurements": [_to_json(one) for one in measurements]}


def _to_json(one: Measurement) -> dict[str, Any]:
    return {
        "engine": one.names.engine,
        "hardware": one.names.hardware,
        "model": one.names.model,
        "layout": one.names.layout,
        "planner": one.planner_version,
        "nodes": one.nodes,
        "steps": one.steps,
        "stepSeconds": one.step_seconds,
        "predictedStepSeconds": one.predicted_step_seconds,
        "peakBytes": one.peak_bytes,
        "predictedPeakBytes": one.predicted_peak_bytes,
    }


def read_calibration(path: Path) -> tuple[Measurement, ...]:
    """Raises Missing and BadCalibration."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Missing(f"--calibration: there is no such file: {path}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadCalibration(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(data, Mapping) or data.get("kind") != KIND:
        raise BadCalibration(
            f"{path}: kind: it is not a {KIND}\n  hint: write one with `trainingrun calibration export`"
        )
    if data.get("version") is True or data.get("version") != VERSION:
        raise BadCalibration(
            f"{path}: version: {data.get('version')!r} is not known here\n  hint: use version {VERSION}, or a "
            "trainingrun of the version that wrote the file"
        )
    entries = data.get("measurements")
    if not isinstance(entries, list):
        raise BadCalibration(f"{path}: measurements: a list is expected, not {entries!r}")
    return tuple(_measurement(entry, f"{path}: measurements[{index}]") for index, entry in enumerate(entries))


def _measurement(entry: Any, where: str) -> Measurement:
    if not isinstance(entry, Mapping):
        raise BadCalibration(f"{where}: an object is expected, not {entry!r}")
    texts = {name: _text(entry, name, where) for name in (*_NAMES, "planner")}
    counts = {name: _number(entry, name, where, whole=True) for name in _COUNTS}
    seconds = {name: _number(entry, name, where, whole=False) for name in _SECONDS}
    return Measurement(
        names=Names(texts["engine"], texts["hardware"], texts["model"], texts["layout"]),
        planner_version=texts["planner"],
        nodes=int(counts["nodes"]),
        steps=int(counts["steps"]),
        step_seconds=seconds["stepSeconds"],
        predicted_step_seconds=seconds["predictedStepSeconds"],
        peak_bytes=int(counts["peakBytes"]),
        predicted_peak_bytes=int(counts["predictedPeakBytes"]),
    )


def _text(entry: Mapping[str, Any], name: str, where: str) -> str:
    value = entry.get(name, "" if name == "layout" else None)
    if not isinstance(value, str):
        raise BadCalibration(f"{where}.{name}: a text is expected, not {value!r}")
    return value


def _number(entry: Mapping[str, Any], name: str, where: str, *, whole: bool) -> float:
    value = entry.get(name, 0)
    right = isinstance(value, int) if whole else isinstance(value, (int, float))
    if not right or isinstance(value, bool) or not 0 <= value <= _MOST:  # no comparison with NaN is true
        raise BadCalibration(
            f"{where}.{name}: {value!r:.40} cannot be\n  hint: a {'whole ' if whole else ''}number, 0 for none"
        )
    return float(value)
