"""The CRD on a real API server: it is accepted, each of its rules refuses what it is for and says what to do, and what
it does not know is refused by every way of applying it.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.crd_cases import CREATES, DEEPSPEED, RESIZED, UPDATES, Case
from tests.operator.api_builders import BASE, ROOT, a_pod_template, manifest
from tools.setup_tools import tool

from trainingrun.api.conditions import initial_conditions
from trainingrun.api.load import parse, resolve

pytestmark = pytest.mark.cluster

CRD = ROOT / "crds" / "trainingruns.trainingrun.dev.yaml"
CRD_NAME = "trainingruns.trainingrun.dev"
# Nothing can have so much: a running operator leaves the run without pods that start.
NOWHERE = ("spec/resources/perNode", {"cpu": "4000", "memory": "4Gi"})
KEPT = manifest(("metadata/name", "kept"), NOWHERE, ("spec/podTemplate", a_pod_template()))


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def taken(self) -> bool:
        return self.code == 0


@dataclass(frozen=True)
class Client:
    """kubectl and helm against a cluster, in a namespace of the tests' own."""

    kubeconfig: str
    namespace: str = field(default_factory=lambda: f"crd-tests-{secrets.token_hex(3)}")

    def run(self, program: str, *words: str, given: Any = None) -> Answer:
        done = subprocess.run(
            [str(tool(program)), *words, "--namespace", self.namespace],
            input=None if given is None else json.dumps(given),
            env={**os.environ, "KUBECONFIG": self.kubeconfig},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def kubectl(self, *words: str, given: Any = None) -> Answer:
        return self.run("kubectl", *words, given=given)

    def done(self, *words: str, given: Any = None) -> str:
        answer = self.kubectl(*words, given=given)
        assert answer.taken, answer.err
        return answer.out

    def tried(self, run: dict[str, Any], *flags: str) -> Answer:
        """What `kubectl apply` would do."""
        return self.kubectl("apply", "--dry-run=server", "-o", "json", "-f", "-", *flags, given=run)


@pytest.fixture(scope="module")
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    """Somebody's cluster, or our own."""
    kubeconfig = os.environ.get("TRAININGRUN_TEST_KUBECONFIG")
    chosen = Client(kubeconfig or str(request.getfixturevalue("cluster").kubeconfig))
    installed = chosen.kubectl("get", "crd", CRD_NAME, "-o", "json")
    wanted = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    if not installed.taken or json.loads(installed.out)["spec"]["versions"] != wanted:
        chosen.done("apply", "-f", str(CRD))
    chosen.done("wait", "--for=condition=Established", f"crd/{CRD_NAME}", "--timeout=30s")
    chosen.done("create", "namespace", chosen.namespace)
    yield chosen
    chosen.done("delete", "trun", "--all", "--wait=false")
    chosen.done("delete", "namespace", chosen.namespace, "--wait=false")


@pytest.fixture(scope="module")
def kept(client: Client) -> dict[str, Any]:
    """A run that exists, as the API server has it."""
    client.done("apply", "-f", "-", given=KEPT)
    stored: dict[str, Any] = json.loads(client.done("get", "trun", "kept", "-o", "json"))
    return stored


@pytest.mark.parametrize(
    "flags", [(), ("--server-side", "--force-conflicts")], ids=["client-side", "server-side"]
)
def test_the_definition_is_accepted_whichever_way_it_is_applied(
    client: Client, flags: tuple[str, ...]
) -> None:
    client.done("apply", "--dry-run=server", *flags, "-f", str(CRD))


def test_no_part_of_the_schema_is_found_not_to_be_structural(client: Client) -> None:
    conditions = json.loads(client.done("get", "crd", CRD_NAME, "-o", "json"))["status"]["conditions"]
    states = {one["type"]: one["status"] for one in conditions}
    assert states["Established"] == "True"
    assert states.get("NonStructuralSchema", "False") == "False"


@pytest.mark.parametrize("case", CREATES, ids=lambda case: case.name)
def test_a_rule_refuses_a_new_run_and_says_what_to_do(client: Client, case: Case) -> None:
    answer = client.tried(manifest(*case.changes))
    assert not answer.taken
    assert case.said in answer.err
    assert "; hint: " in answer.err


@pytest.mark.parametrize("case", UPDATES, ids=lambda case: case.name)
def test_a_rule_refuses_a_change_and_says_what_to_do(
    client: Client, kept: dict[str, Any], case: Case
) -> None:
    changed = manifest(
        ("metadata/name", "kept"), NOWHERE, ("spec/podTemplate", a_pod_template()), *case.changes
    )
    answer = client.tried(changed)
    assert not answer.taken
    assert case.said in answer.err


def test_a_run_of_the_engine_deepspeed_keeps_its_size(client: Client, kept: dict[str, Any]) -> None:
    client.done("apply", "-f", "-", given=manifest(("metadata/name", "fixed"), NOWHERE, *DEEPSPEED))
    answer = client.tried(manifest(("metadata/name", "fixed"), NOWHERE, *RESIZED.changes))
    assert not answer.taken
    assert RESIZED.said in answer.err


def test_a_pod_template_cannot_be_added_later(client: Client, kept: dict[str, Any]) -> None:
    client.done("apply", "-f", "-", given=manifest(("metadata/name", "plain"), NOWHERE))
    added = manifest(("metadata/name", "plain"), NOWHERE, ("spec/podTemplate", a_pod_template()))
    answer = client.tried(added)
    assert "spec.podTemplate: cannot be added to a run" in answer.err


@pytest.mark.parametrize(
    "change",
    [
        ("spec/scale", {"minNodes": 1, "maxNodes": 3}),
        ("spec/recovery", {"noProgressLimit": 5}),
        ("spec/checkpoint/durable", {"intervalSteps": 7, "keepLast": 9}),
    ],
)
def test_what_may_be_changed_can_be(client: Client, kept: dict[str, Any], change: tuple[str, Any]) -> None:
    changed = manifest(("metadata/name", "kept"), NOWHERE, ("spec/podTemplate", a_pod_template()), change)
    assert client.tried(changed).taken


@pytest.mark.parametrize("pod", [None, a_pod_template()], ids=["plain", "with a pod template"])
def test_defaults_are_those_of_the_models(client: Client, pod: dict[str, Any] | None) -> None:
    written = manifest(*([("spec/podTemplate", pod)] if pod else []))
    stored = json.loads(client.tried(written).out)
    assert resolve(parse(stored, BASE), BASE) == resolve(parse(written, BASE), BASE)
    assert stored["spec"]["recovery"]["limits"] == [{"cause": "Application", "max": 3, "windowSeconds": 3600}]


def test_the_manifests_for_a_cluster_are_accepted(client: Client) -> None:
    for name in ("cluster-pretrain.yaml", "cluster-claim.yaml"):
        client.done("apply", "--dry-run=server", "-f", str(ROOT / "examples" / name))


def test_a_run_that_nobody_has_looked_at_has_conditions_and_columns(client: Client) -> None:
    fresh = json.loads(client.tried(manifest(("metadata/name", "fresh"))).out)
    assert fresh["status"]["conditions"] == initial_conditions(0, 0)


def test_people_see_the_columns_and_the_short_names(client: Client, kept: dict[str, Any]) -> None:
    heading = client.done("get", "trun").splitlines()[0].split()
    assert heading == ["NAME", "TASK", "STATE", "NODES", "STEP", "EPOCH", "AGE"]
    wide = client.done("get", "training", "-o", "wide").splitlines()[0].split()
    assert wide[len(heading) :] == ["GOODPUT-PERMILLE", "CHECKPOINT", "MESSAGE"]


def test_kubectl_scale_sets_the_most_nodes(client: Client, kept: dict[str, Any]) -> None:
    client.done("scale", "trun/kept", "--replicas=5")
    assert client.done("get", "trun", "kept", "-o", "jsonpath={.spec.scale.maxNodes}") == "5"
    refused = client.kubectl("scale", "trun/kept", "--replicas=0")
    assert not refused.taken
    client.done("scale", "trun/kept", "--replicas=2")


TYPO = manifest(("metadata/name", "typo"), ("spec/scale/minNode", 1))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), 'unknown field "spec.scale.minNode"'),
        (("--server-side",), "spec.scale.minNode"),
    ],
    ids=["client-side", "server-side"],
)
def test_kubectl_apply_refuses_an_unknown_field(client: Client, flags: tuple[str, ...], said: str) -> None:
    answer = client.tried(TYPO, *flags)
    assert not answer.taken
    assert said in answer.err


def test_an_unknown_field_inside_of_what_is_handed_on_is_kept(client: Client) -> None:
    csi = {"name": "scratch", "csi": {"driver": "x.example.com", "volumeAttributes": {"a": "b"}}}
    run = manifest(("spec/podTemplate", a_pod_template(("spec/volumes", [csi]))))
    stored = json.loads(client.tried(run).out)
    assert stored["spec"]["podTemplate"]["spec"]["volumes"] == [csi]


def test_without_validation_an_unknown_field_is_dropped_and_does_nothing(client: Client) -> None:
    stored = json.loads(client.tried(TYPO, "--validate=ignore").out)
    assert "minNode" not in stored["spec"]["scale"]


def test_helm_refuses_an_unknown_field(client: Client, tmp_path: Path) -> None:
    chart = tmp_path / "runs"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: runs\nversion: 1.0.0\n")
    (chart / "templates" / "run.yaml").write_text(yaml.safe_dump(TYPO))
    answer = client.run("helm", "install", "runs", str(chart))
    assert not answer.taken
    assert "minNode" in answer.err
    assert not client.kubectl("get", "trun", "typo").taken
