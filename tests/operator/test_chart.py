"""What the chart installs, as `helm template` shows it."""

from __future__ import annotations

import subprocess

import kubernetes_validate
import pytest
import yaml
from tests.operator.chart_rendering import NAMESPACE, Rendered, chart, notes
from tools.generate_chart import CHART, DEFINITION, IMAGES, ROOT
from tools.setup_tools import tool

import trainingrun
from trainingrun.api.constants import NEWEST_KUBERNETES, OLDEST_KUBERNETES, Label
from trainingrun.cluster.kubernetes.settings import KubeSettings
from trainingrun.protocol.names import TOKEN_AUDIENCE

PROGRAMS = ("controller", "membership")
EVERYTHING = {
    "watchNamespaces": ["team-a", "team-b"],
    "imagePullSecrets": [{"name": "pull"}],
    "networkPolicy": {"enabled": True},
    "podMonitor": {"enabled": True},
    "controller": {
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "pool", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "podAnnotations": {"a": "b"},
        "podLabels": {"c": "d"},
        "serviceAccountAnnotations": {"e": "f"},
    },
}
MONITORING = ("--api-versions", "monitoring.coreos.com/v1")


def test_helm_lint_has_nothing_to_say_beyond_the_icon() -> None:
    command = [tool("helm"), "lint", "--strict", CHART, *IMAGES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    told = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert done.returncode == 0
    assert told == ["[INFO] Chart.yaml: icon is recommended"]


@pytest.mark.parametrize("version", [OLDEST_KUBERNETES, NEWEST_KUBERNETES])
@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_every_object_fits_the_schema_of_kubernetes(version: str, values: dict[str, object]) -> None:
    for item in chart(values, *MONITORING).objects:
        if item["kind"] not in ("CustomResourceDefinition", "PodMonitor"):
            kubernetes_validate.validate(item, version, strict=True)


def test_the_versions_are_those_of_the_code() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["appVersion"] == trainingrun.__version__
    assert about["kubeVersion"] == f">={OLDEST_KUBERNETES}.0-0"


# the definition


def test_the_definition_is_the_one_of_the_code_and_is_kept() -> None:
    shown = chart().get("CustomResourceDefinition", "trainingruns.trainingrun.dev")
    labels, annotations = shown["metadata"].pop("labels"), shown["metadata"].pop("annotations")
    assert shown == yaml.safe_load((ROOT / "crds" / DEFINITION).read_text())
    assert annotations == {"helm.sh/resource-policy": "keep"}
    assert labels["app.kubernetes.io/managed-by"] == "Helm"


def test_the_definition_can_go_with_the_release_or_come_from_elsewhere() -> None:
    definition = chart({"crds": {"keep": False}}).all("CustomResourceDefinition")[0]
    assert "annotations" not in definition["metadata"]
    assert chart({"crds": {"enabled": False}}).all("CustomResourceDefinition") == []


# the programs


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_environment_makes_the_settings_of_the_code(program: str) -> None:
    values = {
        "watchNamespaces": ["team-a", "team-b"],
        "trainer": {"image": {"tag": "7", "pullPolicy": "Never"}},
    }
    settings = KubeSettings.from_environment(chart(values).environment(program))
    assert settings.operator_namespace == NAMESPACE
    assert settings.watch_namespaces == ("team-a", "team-b")
    assert settings.trainer_image == "trainingrun/trainer:7"
    assert settings.trainer_image_pull_policy == "Never"
    assert settings.controller_account == f"system:serviceaccount:{NAMESPACE}:trainingrun-controller"
    assert settings.membership_url == "https://trainingrun-membership.trainingrun-system.svc:8443"


def test_no_variable_is_set_that_the_code_does_not_read() -> None:
    from dataclasses import fields

    from trainingrun.cluster.kubernetes.settings import variable

    known = {variable(item) for item in fields(KubeSettings)}
    for program in PROGRAMS:
        assert chart().environment(program).keys() <= known


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_the_settings_name_is_what_the_chart_makes(program: str) -> None:
    rendered = chart()
    settings = KubeSettings.from_environment(rendered.environment(program))
    ports = {port["name"]: port["containerPort"] for port in rendered.container(program)["ports"]}
    service = rendered.get("Service", settings.membership_name)
    assert service["spec"]["ports"][0]["port"] == settings.membership_port
    listens = {
        "controller": {"health": settings.health_port, "metrics": settings.metrics_port},
        "membership": {"health": settings.health_port, "membership": settings.membership_port},
    }
    assert ports == listens[program]
    assert _names_of(rendered, "membership", "secrets", "get") == [settings.ca_name]
    assert service["spec"]["selector"].items() <= rendered.pod("membership")["metadata"]["labels"].items()
    _, _, namespace, account = settings.controller_account.split(":")
    assert rendered.get("ServiceAccount", account)["metadata"]["namespace"] == namespace


def _names_of(rendered: Rendered, program: str, resource: str, verb: str) -> list[str]:
    rules = [rule for _, rule in rendered.rules(program)]
    return [
        name
        for rule in rules
        if resource in rule["resources"] and verb in rule["verbs"]
        for name in rule.get("resourceNames", ["*"])
    ]


@pytest.mark.parametrize("program", PROGRAMS)
def test_there_is_one_of_each_and_never_two(program: str) -> None:
    spec = chart().get("Deployment", f"trainingrun-{program}")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_lost_node_is_left_after_15_seconds(program: str) -> None:
    tolerations = chart({program: {"tolerations": [{"operator": "Exists"}]}}).pod(program)["spec"][
        "tolerations"
    ]
    lost = {
        item["key"]: item["tolerationSeconds"] for item in tolerations if item.get("effect") == "NoExecute"
    }
    assert lost == {"node.kubernetes.io/not-ready": 15, "node.kubernetes.io/unreachable": 15}
    assert tolerations[-1] == {"operator": "Exists"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_pods_pass_the_restricted_level(program: str) -> None:
    pod = chart().pod(program)["spec"]
    container = chart().container(program)["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 65532
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["allowPrivilegeEscalation"] is False
    assert container["readOnlyRootFilesystem"] is True
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert {kind for volume in pod["volumes"] for kind in volume if kind != "name"} <= {
        "emptyDir",
        "projected",
    }


@pytest.mark.parametrize("program", PROGRAMS)
def test_health_is_asked_on_the_health_port(program: str) -> None:
    container = chart().container(program)
    paths = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {probe["port"] for probe in paths.values()} == {"health"}
    assert paths["liveness"]["path"] == paths["startup"]["path"] == "/healthz"
    assert paths["readiness"]["path"] == "/readyz"


def test_only_the_controller_shows_a_token_to_membership() -> None:
    rendered = chart()
    settings = KubeSettings.from_environment(rendered.environment("controller"))
    volume = next(
        item for item in rendered.pod("controller")["spec"]["volumes"] if item["name"] == "membership"
    )
    token = volume["projected"]["sources"][0]["serviceAccountToken"]
    mount = next(
        item for item in rendered.container("controller")["volumeMounts"] if item["name"] == "membership"
    )
    assert token["audience"] == TOKEN_AUDIENCE
    assert f"{mount['mountPath']}/{token['path']}" == settings.token_file
    assert [item["name"] for item in rendered.pod("membership")["spec"]["volumes"]] == ["tmp"]


def test_a_digest_wins_over_a_tag() -> None:
    digest = "sha256:" + "0" * 64
    values = {"image": {"repository": "here/operator", "tag": "1", "digest": digest}}
    assert chart(values).container("controller")["image"] == f"here/operator@{digest}"
    assert chart(values).environment("controller")["TRAININGRUN_TRAINER_IMAGE"] == "trainingrun/trainer:0.1.0"


def test_selectors_cannot_be_changed_by_values() -> None:
    labels = {"app.kubernetes.io/component": "other"}
    pod = chart({"controller": {"podLabels": labels}}).pod("controller")
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "controller"


# options


def test_only_workers_and_the_controller_reach_membership() -> None:
    assert chart().all("NetworkPolicy") == []
    rendered = chart({"networkPolicy": {"enabled": True}})
    spec = rendered.get("NetworkPolicy", "trainingrun-membership")["spec"]
    allowed = next(rule for rule in spec["ingress"] if rule["ports"][0]["port"] == "membership")["from"]
    workers, controller = allowed
    assert workers["namespaceSelector"] == {}
    assert workers["podSelector"]["matchExpressions"] == [{"key": Label.RUN_UID.value, "operator": "Exists"}]
    labels = rendered.pod("controller")["metadata"]["labels"]
    assert controller["podSelector"]["matchLabels"].items() <= labels.items()
    assert "namespaceSelector" not in controller


def test_a_pod_monitor_finds_the_controller_which_alone_has_metrics() -> None:
    rendered = chart({"podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}}, *MONITORING)
    monitor = rendered.get("PodMonitor", "trainingrun-controller")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    assert wanted <= rendered.pod("controller")["metadata"]["labels"].items()
    assert not wanted <= rendered.pod("membership")["metadata"]["labels"].items()
    assert monitor["metadata"]["labels"]["release"] == "prometheus"


def test_the_notes_say_what_stays_after_an_uninstall() -> None:
    kept, gone = notes({}), notes({"crds": {"keep": False}})
    for words in ("every run", "go on training", "secret,configmap trainingrun-membership-ca"):
        assert words in kept
    assert "NOT the TrainingRun definition" in gone
    assert "go on training" not in gone
