"""The CustomResourceDefinition, made from the models: `python -m trainingrun.api.crd` prints it.

The same models give the same text, so that a check can compare it with the committed file.
"""

from __future__ import annotations

import sys
from typing import Any

import yaml

from trainingrun.api import constants
from trainingrun.api.models import NAME_RULES, TrainingRunSpec
from trainingrun.api.schema import structural
from trainingrun.api.status import TrainingRunStatus

HEADER = "# Made by `make generate` from operator/trainingrun/api. Do not edit.\n"

COLUMNS = (
    # name, type, JSON path, priority (1: shown by -o wide), description
    ("Task", "string", ".spec.task", 0, "Kind of work."),
    ("State", "string", '.status.conditions[?(@.type=="Ready")].reason', 0, "What the run does now."),
    ("Nodes", "string", ".status.membership.summary", 0, "Nodes that train / most nodes wanted."),
    ("Step", "integer", ".status.progress.step", 0, "Steps done."),
    ("Epoch", "integer", ".status.membership.epoch", 0, "Starts of the processes."),
    ("Age", "date", ".metadata.creationTimestamp", 0, "Time since the run was created."),
    (
        "Goodput-Permille",
        "integer",
        ".status.goodput.permille",
        1,
        "Productive share of the time, in thousandths.",
    ),
    ("Checkpoint", "integer", ".status.checkpoint.durable.step", 1, "Step of the newest durable checkpoint."),
    ("Message", "string", '.status.conditions[?(@.type=="Ready")].message', 1, "The state in words."),
)


def root_schema() -> dict[str, Any]:
    """The schema of the whole object."""
    return {
        "description": "A TrainingRun is one piece of work on one language model.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"description": "Version of this schema.", "type": "string", "maxLength": 64},
            "kind": {"description": "Kind of the object.", "type": "string", "maxLength": 64},
            "metadata": {"type": "object"},  # the API server allows nothing more here
            "spec": structural(TrainingRunSpec),
            "status": {**structural(TrainingRunStatus), "default": {}},
        },
        "x-kubernetes-validations": list(NAME_RULES),
    }


def custom_resource_definition() -> dict[str, Any]:
    columns = [
        {"name": name, "type": kind, "jsonPath": path, "priority": priority, "description": description}
        for name, kind, path, priority, description in COLUMNS
    ]
    version = {
        "name": constants.VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": columns,
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.scale.maxNodes",
                "statusReplicasPath": ".status.membership.nodes.training",
            },
        },
        "schema": {"openAPIV3Schema": root_schema()},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{constants.PLURAL}.{constants.GROUP}"},
        "spec": {
            "group": constants.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": constants.KIND,
                "listKind": f"{constants.KIND}List",
                "plural": constants.PLURAL,
                "singular": constants.SINGULAR,
                "shortNames": [constants.SHORT_NAME],
                "categories": [constants.CATEGORY],
            },
            "versions": [version],
        },
    }


class _Dumper(yaml.SafeDumper):
    """Writes shared parts out instead of as anchors, which readers of a CRD do not expect."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def render() -> str:
    """The CRD as YAML text."""
    text = yaml.dump(
        custom_resource_definition(), Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True
    )
    return HEADER + text


if __name__ == "__main__":
    sys.stdout.write(render())
