"""Rights that the chart gives: enough for what the code asks, and nothing that a person would be afraid of."""

from __future__ import annotations

import pytest
from tests.operator.chart_rendering import NAMESPACE, chart

from trainingrun.cluster.kubernetes.permissions import RIGHTS

PROGRAMS = ("controller", "membership")
TEAMS = ("team-a", "team-b")
SCOPED = {"watchNamespaces": list(TEAMS)}


def allowed(program: str, where: str, values: dict[str, object] | None = None) -> set[tuple[str, str, str]]:
    """(verb, resource, name or "*") that `program` may do in namespace `where`."""
    return {
        (verb, resource, name)
        for place, rule in chart(values).rules(program)
        if place in ("", where)
        for verb in rule["verbs"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", ["*"])
    }


@pytest.mark.parametrize("values", [{}, SCOPED], ids=["everywhere", "scoped"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_no_right_has_a_wildcard(program: str, values: dict[str, object]) -> None:
    for _, rule in chart(values).rules(program):
        assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]


def test_the_controller_may_do_what_its_code_needs_and_nothing_else() -> None:
    needed = {(verb, right.group, right.resource) for right in RIGHTS for verb in right.verbs}
    given = {
        (verb, group, resource)
        for where, rule in chart().rules("controller")
        if not where
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    # Never asked for by the code: the API server wants it for owner references that block deletion.
    assert given - needed == {("update", "trainingrun.dev", "trainingruns/finalizers")}
    assert needed <= given


@pytest.mark.parametrize("values", [{}, SCOPED], ids=["everywhere", "scoped"])
def test_the_controller_never_sees_a_secret(values: dict[str, object]) -> None:
    resources = {resource for _, rule in chart(values).rules("controller") for resource in rule["resources"]}
    assert "secrets" not in resources


def test_membership_reads_one_secret_and_only_in_its_own_namespace() -> None:
    own = {right for right in allowed("membership", NAMESPACE) if right[1] == "secrets"}
    assert own == {("create", "secrets", "*"), ("get", "secrets", "trainingrun-membership-ca")}
    assert not {right for right in allowed("membership", "team-a") if right[1] == "secrets"}


def test_nobody_changes_the_wish_of_a_user() -> None:
    for program in PROGRAMS:
        changed = {verb for verb, resource, _ in allowed(program, "team-a") if resource == "trainingruns"}
        assert changed <= {"get", "list", "watch"}
    status = {
        verb for verb, resource, _ in allowed("membership", "team-a") if resource == "trainingruns/status"
    }
    assert status == set()


def test_records_are_created_and_never_changed() -> None:
    for program in PROGRAMS:
        verbs = {
            verb for verb, resource, _ in allowed(program, "team-a") if resource == "controllerrevisions"
        }
        assert "create" in verbs
        assert not verbs & {"update", "patch", "delete", "deletecollection"}


def test_nodes_are_only_looked_at() -> None:
    verbs = {verb for verb, resource, _ in allowed("controller", "") if resource == "nodes"}
    assert verbs == {"list", "watch"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_with_watched_namespaces_the_same_rights_hold_there_and_nowhere_else(program: str) -> None:
    for team in TEAMS:
        assert allowed(program, team, SCOPED) == allowed(program, team)
    elsewhere = {(verb, resource) for verb, resource, _ in allowed(program, "team-c", SCOPED)}
    small = {
        "controller": {("list", "nodes"), ("watch", "nodes")},
        "membership": {("create", "tokenreviews")},
    }
    assert elsewhere == small[program]


def test_releases_of_one_name_in_two_namespaces_share_no_cluster_role() -> None:
    names = {item["metadata"]["name"] for item in chart().all("ClusterRole", "ClusterRoleBinding")}
    assert all(f":{NAMESPACE}:" in name for name in names)


def test_who_may_edit_a_namespace_may_edit_its_runs_but_not_their_status() -> None:
    label = "rbac.authorization.k8s.io/aggregate-to-edit"
    roles = [role for role in chart().all("ClusterRole") if label in role["metadata"]["labels"]]
    assert [rule["resources"] for role in roles for rule in role["rules"]] == [
        ["trainingruns", "trainingruns/scale"]
    ]
    without = chart({"rbac": {"aggregateRoles": False}}).all("ClusterRole")
    assert not [role for role in without if label in role["metadata"]["labels"]]
