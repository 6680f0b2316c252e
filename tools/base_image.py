"""The file system below every image that tests use: a minimal Debian with Python, made once with debootstrap.

It comes from the machine's own apt source, so it works wherever apt does. The environments and the checkout are
not in it: the test cluster mounts them, and an image that is checked adds them by its Dockerfile.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tools import cache
from tools.errors import ToolError

SUITE = "bookworm"  # its Python is 3.11, for which the project's versions are pinned
INCLUDE = "ca-certificates,python3,python3-venv,procps,iproute2"
USER = 65532  # whom pods run as
RECIPE = "1"  # raise it when prepare() changes
UNNEEDED = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "var/lib/apt/lists",
    "var/cache/apt",
)


def apt_source(root: Path = Path("/etc/apt")) -> str:
    """The address from which this machine's apt takes the suite. Raises ToolError when it takes it from nowhere."""
    for listing in [root / "sources.list", *sorted((root / "sources.list.d").glob("*"))]:
        if not listing.is_file():
            continue
        text = "\n".join(
            line for line in listing.read_text().splitlines() if not line.lstrip().startswith("#")
        )
        found = _from_paragraphs(text) if listing.suffix == ".sources" else _from_lines(text)
        if found:
            return found
    raise ToolError(
        f"apt of this machine has no source for Debian {SUITE}, from which the base image is made",
        f"add one to /etc/apt/sources.list: deb ADDRESS {SUITE} main",
    )


def _from_paragraphs(text: str) -> str:
    for paragraph in text.split("\n\n"):
        fields: dict[str, str] = {}
        for line in paragraph.splitlines():
            name, colon, value = line.partition(":")
            if colon:
                fields[name.strip().lower()] = value.strip()
        if "deb" in fields.get("types", "").split() and SUITE in fields.get("suites", "").split():
            return fields.get("uris", "").split()[0]
    return ""


def _from_lines(text: str) -> str:
    for line in text.splitlines():
        words = line.split()
        if words[:1] != ["deb"]:
            continue
        if len(words) > 1 and words[1].startswith("["):
            end = next(number for number, word in enumerate(words) if word.endswith("]"))
            del words[1 : end + 1]
        if len(words) > 2 and words[2] == SUITE:
            return words[1]
    return ""


def layer() -> Path:
    """The tar of the file system."""
    tar = cache.folder("images") / f"base-{cache.key(SUITE, INCLUDE, RECIPE)}.tar"
    if tar.exists():
        return tar
    cache.say(f"making the base image with debootstrap from {apt_source()} (a minute or two, once)")
    root = cache.folder("images") / "rootfs"
    shutil.rmtree(root, ignore_errors=True)
    cache.run("debootstrap", "--variant=minbase", f"--include={INCLUDE}", SUITE, root, apt_source())
    prepare(root)
    with cache.publishing(tar) as draft:
        cache.run("tar", "--numeric-owner", "--sort=name", "--exclude=./dev/*", "-C", root, "-cf", draft, ".")
    shutil.rmtree(root)
    return tar


def prepare(root: Path) -> None:
    """Removes what no test reads, and adds the user whom pods run as: some libraries ask for their user's name."""
    for name in UNNEEDED:
        shutil.rmtree(root / name, ignore_errors=True)
    with (root / "etc/passwd").open("a") as users:
        users.write(f"trainingrun:x:{USER}:{USER}:trainingrun:/tmp:/usr/sbin/nologin\n")
    with (root / "etc/group").open("a") as groups:
        groups.write(f"trainingrun:x:{USER}:\n")
