"""The documents say what is so: words of the API, exit codes, metrics, paths, links and commands of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from trainingrun.api import constants, errors
from trainingrun.api.constants import ConditionType, Reason
from trainingrun.api.errors import CliExit
from trainingrun.cli import main
from trainingrun.cluster.kubernetes.freshness import Freshness
from trainingrun.cluster.kubernetes.health import Health
from trainingrun.cluster.kubernetes.settings import KubeSettings

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
OPERATIONS = ROOT / "docs" / "operations.md"
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "helm").rglob("*.md")),
    *sorted((ROOT / "tests").rglob("*.md")),
]
_FOLDERS = "benchmarks|control|docs|examples|helm|operator|tests|tools|trainer_image"
_FENCED = re.compile(r"^```.*?^```$", re.M | re.S)


def prose(path: Path) -> str:
    return _FENCED.sub("", path.read_text())


def first_cells(path: Path, heading: str = "") -> list[str]:
    """Everything in backticks in the first cell of each row of the tables of a document, or of one section of it."""
    text = prose(path)
    if heading:
        text = re.split(r"^#+ ", text.partition(f"{heading}\n")[2], maxsplit=1, flags=re.M)[0]
    rows = re.findall(r"^\| (.*?) \|", text, re.M)
    return [word for cell in rows for word in re.findall(r"`([^`]+)`", cell)]


def anchors(path: Path) -> set[str]:
    """As GitHub makes them of headings, and those that are written out."""
    titles = re.findall(r"^#+ (.*)$", prose(path), re.M)
    made = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    return made | set(re.findall(r'<a id="([^"]+)">', path.read_text()))


class IdleLoop:
    beaten_at = 0.0
    known_runs = 0


def test_every_reason_is_explained_once_and_no_other() -> None:
    assert sorted(first_cells(OPERATIONS, "### Reasons")) == sorted(reason.value for reason in Reason)


def test_every_condition_is_explained() -> None:
    assert set(first_cells(OPERATIONS, "## What the conditions say")) == {
        kind.value for kind in ConditionType
    }


@pytest.mark.parametrize("code", list(CliExit))
def test_every_exit_code_is_in_the_readme_in_the_words_of_the_code_and_in_the_help(code: CliExit) -> None:
    row = re.compile(rf"^\| {code.value} \| {code.name} \| .+ \|$", re.M)
    said = row.search(errors.__doc__ or "")
    assert said is not None
    assert said[0] in README.read_text().splitlines()
    assert re.search(rf"\b{code.value} [a-z]", main._EXIT_CODES)


def test_every_command_is_in_the_readme() -> None:
    commands = main.typer.main.get_command(main.app).list_commands(None)
    assert [name for name in commands if f"`trainingrun {name} " not in README.read_text()] == []


def test_every_metric_is_described_and_no_other() -> None:
    settings = KubeSettings(operator_namespace="-", trainer_image="-", membership_name="-")
    names = {family.name for family in Health(IdleLoop(), Freshness(), settings).metrics()}
    assert {re.sub(r"\{.*", "", cell) for cell in first_cells(OPERATIONS) if "_controller_" in cell} == names


def test_the_manifest_of_the_readme_is_the_example() -> None:
    shown = re.search(r"^```yaml\n(.*?)^```$", README.read_text(), re.M | re.S)
    assert shown is not None
    example = (ROOT / "examples" / "cluster-pretrain.yaml").read_text()
    assert yaml.safe_load(shown[1]) == yaml.safe_load(example)


@pytest.mark.parametrize("name", ["README.md", "docs/operations.md", "docs/architecture.md"])
def test_the_versions_of_kubernetes_are_those_of_the_code(name: str) -> None:
    about = [line for line in prose(ROOT / name).splitlines() if "Kubernetes" in line]
    said = set(re.findall(r"\b1\.[23]\d\b", "\n".join(about)))
    assert constants.OLDEST_KUBERNETES in said
    assert said <= {constants.OLDEST_KUBERNETES, constants.NEWEST_KUBERNETES}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if target.startswith(("http:", "https:")):
            continue
        file, _, anchor = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_are_named_are_there(path: Path) -> None:
    for name in re.findall(rf"`((?:{_FOLDERS})/[\w./*<>-]+)", path.read_text()):
        if "<" not in name:
            homes = (ROOT, ROOT / "operator" / "trainingrun")
            assert any(list(home.glob(name)) for home in homes), name


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_targets_of_make_that_are_named_are_there(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"(?:`|^)make ([a-z-]+)", path.read_text(), re.M)) <= targets
