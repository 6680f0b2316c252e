"""Writes what the chart repeats from elsewhere: the definition from crds/, the values of the programs' times, and the
tables of its README.

Run by `make generate`; `--check` only tells what differs. The times come from the settings that the programs read, the
table of values from the comments of values.yaml, the table of rights from the rendered roles: nothing can tell
something that is not so.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from tools import chart_settings
from tools.setup_tools import tool

IMAGES = ("--set", "image.repository=operator", "--set", "trainer.image.repository=trainer")
"""Must be set by everybody; where the chart is only looked at, any will do."""
ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "helm" / "trainingrun"
DEFINITION = "trainingruns.trainingrun.dev.yaml"
VALUES, SCHEMA = CHART / "values.yaml", CHART / "values.schema.json"
_TIMES_VALUES = re.compile(r"^times:\n(?: .*\n)*", re.M)
_TIMES_SCHEMA = re.compile(r'^    "times": .*?^    \},\n', re.M | re.S)
_KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z]+):(?: |$)")


def render(*arguments: str, release: str = "trainingrun", namespace: str = "trainingrun-system") -> str:
    """What `helm template` makes of the chart. Raises CalledProcessError, which has the stderr."""
    command = [str(tool("helm")), "template", release, str(CHART), "--namespace", namespace, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout


def documented_values(text: str) -> Iterator[tuple[str, str]]:
    """(path, comment) of each key of values.yaml that has a comment directly above it."""
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            comment.append(stripped.lstrip("# "))
            continue
        if match := _KEY.match(line):
            indent = len(match["indent"])
            path = [*((at, key) for at, key in path if at < indent), (indent, match["key"])]
            if comment:
                yield ".".join(key for _, key in path), " ".join(comment)
        comment = []


def values_table(text: str) -> str:
    values = yaml.safe_load(text)
    rows = ["| value | default | what it is |", "|---|---|---|"]
    for path, comment in documented_values(text):
        default: Any = values
        for key in path.split("."):
            default = default[key]
        rows.append(f"| `{path}` | `{json.dumps(default)}` | {comment} |")
    return "\n".join(rows)


def rights_table(rendered: str) -> str:
    """Of the two programs: what they may do, and where."""
    objects = [item for item in yaml.safe_load_all(rendered) if item]
    roles = {
        (item["kind"], item["metadata"]["name"]): item
        for item in objects
        if item["kind"] in ("Role", "ClusterRole")
    }
    rows = ["| program | where | resource | verbs |", "|---|---|---|---|"]
    for binding in objects:
        if binding["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        program = binding["subjects"][0]["name"].rpartition("-")[2]
        where = "everywhere" if binding["kind"] == "ClusterRoleBinding" else "the operator's namespace"
        for rule in roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]["rules"]:
            group = f".{rule['apiGroups'][0]}" if rule["apiGroups"][0] else ""
            only = f", only {', '.join(rule['resourceNames'])}" if "resourceNames" in rule else ""
            verbs = ", ".join(rule["verbs"])
            rows += [f"| {program} | {where} | {name}{group}{only} | {verbs} |" for name in rule["resources"]]
    return "\n".join([*rows[:2], *sorted(rows[2:])])


def with_section(text: str, name: str, content: str) -> str:
    """`text` with what is between the two marks of this name replaced."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    head, _, rest = text.partition(begin)
    _, found, tail = rest.partition(end)
    if not found:
        raise SystemExit(f"{CHART / 'README.md'} has no section between {begin.strip()} and {end}")
    return f"{head}{begin}\n{content}\n\n{end}{tail}"


def with_block(path: Path, block: re.Pattern[str], content: str) -> str:
    """The text of a file with its one block replaced."""
    text, count = block.subn(lambda _: content, path.read_text())
    if count != 1:
        raise SystemExit(f"{path} must have exactly one block that begins with times, and has {count}")
    return text


def read_by_helm() -> dict[Path, str]:
    """Generated files that rendering reads, and what must be in them."""
    return {
        CHART / "files" / DEFINITION: (ROOT / "crds" / DEFINITION).read_text(),
        VALUES: with_block(VALUES, _TIMES_VALUES, chart_settings.values_block()),
        SCHEMA: with_block(SCHEMA, _TIMES_SCHEMA, chart_settings.schema_block()),
    }


def wanted() -> dict[Path, str]:
    """All generated files and what must be in them."""
    readme, files = CHART / "README.md", read_by_helm()
    text = with_section(readme.read_text(), "values", values_table(files[VALUES]))
    return {**files, readme: with_section(text, "rights", rights_table(render(*IMAGES)))}


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print("usage: python -m tools.generate_chart [--check]", file=sys.stderr)
        return 2
    if not arguments:
        for path, text in read_by_helm().items():
            path.write_text(text)
    differing = [path for path, text in wanted().items() if not path.exists() or path.read_text() != text]
    if arguments:
        for path in differing:
            print(f"{path.relative_to(ROOT)} is not up to date: run make generate", file=sys.stderr)
        return 1 if differing else 0
    for path, text in wanted().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
