"""Which settings of the operator's programs the chart offers as values, and why it does not offer the others.

The times have a block of values of their own, `times`, made of the settings: name, default, limits and meaning stand in
one place. What else is offered has a value of a name that suits the chart. Used by generate_chart; the tests refuse a
setting that is in no list.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from trainingrun.cluster.kubernetes.settings import KubeSettings

NAMED: Mapping[str, str] = {
    "trainer_image": "trainer.image.repository",
    "trainer_image_pull_policy": "trainer.image.pullPolicy",
    "watch_namespaces": "watchNamespaces",
    "log_format": "log.format",
    "log_level": "log.level",
}
"""The value that decides a setting."""
TIMES = (
    "request_seconds",
    "membership_seconds",
    "resync_seconds",
    "cache_seconds",
    "watch_inactivity_seconds",
    "watch_stale_seconds",
    "watch_dead_seconds",
)
"""Settings that are values under `times`, in this order."""
INTERNAL: Mapping[str, str] = {
    "operator_namespace": "it is the namespace of the release",
    "membership_name": "it follows from the name of the release",
    "controller_account": "it follows from the name and the namespace of the release",
    "membership_port": "Service and NetworkPolicy of the chart name it",
    "health_port": "the probes of the chart name it",
    "metrics_port": "PodMonitor and NetworkPolicy of the chart name it",
    "token_file": "the chart mounts it",
    "watch_compare_seconds": "a watch is judged by several comparisons within a minute, so it must stay far below one",
    "heartbeat_seconds": "a loop that is silent for longer is stuck: waiting longer would only hide it",
}
"""Why a setting is no value."""


def value_of(name: str) -> str:
    """The path of the value that decides a setting which has one."""
    return NAMED.get(name) or f"times.{_camel(name)}"


def values_block() -> str:
    """`times` of values.yaml; the comments become the table of the README."""
    lines = ["times:"]
    for item in _times():
        lines += [f"  # Seconds: {item.metadata['help']}.", f"  {_camel(item.name)}: {item.default:g}"]
    return "\n".join(lines) + "\n"


def schema_block() -> str:
    """`times` of values.schema.json, between its neighbours."""
    properties = {_camel(item.name): _number(item) for item in _times()}
    lines = [f"        {json.dumps(name)}: {json.dumps(about)}" for name, about in properties.items()]
    return "\n".join(
        [
            '    "times": {',
            '      "type": "object",',
            '      "additionalProperties": false,',
            '      "properties": {',
            ",\n".join(lines),
            "      },",
            f'      "required": {json.dumps(list(properties))}',
            "    },\n",
        ]
    )


def _times() -> list[dataclasses.Field[object]]:
    known = {item.name: item for item in dataclasses.fields(KubeSettings)}
    return [known[name] for name in TIMES]


def _number(item: dataclasses.Field[object]) -> dict[str, object]:
    limits = {"minimum": item.metadata["least"], "maximum": item.metadata["most"]}
    return {"type": "number", **{name: limit for name, limit in limits.items() if limit is not None}}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
