"""The agent's settings: one frozen object, read once from the environment.

A variable that is missing or ill-typed is a BadConfiguration that names it: such a pod can never work, and
restarting it would not help.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from trainer.agent.credentials import Credentials
from trainer.agent.endings import BadConfiguration
from trainingrun.protocol import names

RESTART_ON_FAILURE = "OnFailure"


@dataclass(frozen=True)
class Settings:
    run_name: str
    run_uid: str
    pod_name: str
    pod_uid: str
    node_name: str
    pod_address: str
    slot: int
    incarnation: int
    processes: int  # ranks on this node
    membership_url: str
    spec_file: Path
    snapshot_dir: Path  # memory-backed
    termination_log: Path
    log_dir: Path
    cache_dir: Path
    credentials: Credentials | None = None  # None: membership is trusted and asks for none (a local run)
    log_stdout: bool = False  # the ranks' output appears on the agent's own

    @property
    def mailboxes(self) -> Path:
        return self.snapshot_dir / "mailboxes"


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Raises BadConfiguration, naming the variable."""

    def text(name: str) -> str:
        value = environment.get(name, "")
        if not value:
            raise BadConfiguration(f"environment variable {name} is not set; the pod template must set it")
        return value

    def number(name: str, least: int) -> int:
        value = text(name)
        if not value.isdecimal() or int(value) < least:
            raise BadConfiguration(
                f"environment variable {name}={value!r} is not a whole number of at least {least}"
            )
        return int(value)

    def folder(name: str) -> Path:
        path = Path(text(name))
        if not path.is_absolute():
            raise BadConfiguration(f"environment variable {name}={str(path)!r} is not an absolute path")
        return path

    def url(name: str) -> str:
        value = text(name)
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadConfiguration(
                f"environment variable {name}={value!r} is not a URL like http://host:port"
            )
        return value.rstrip("/")

    def choice(name: str, *values: str) -> str:
        value = environment.get(name, "")
        if value not in ("", *values):
            raise BadConfiguration(
                f"environment variable {name}={value!r} is not {' or '.join(map(repr, values))}"
            )
        return value

    def credentials(membership_url: str) -> Credentials | None:
        both = (names.ENV_MEMBERSHIP_CA, names.ENV_MEMBERSHIP_TOKEN)
        given, secure = (
            [name for name in both if environment.get(name)],
            membership_url.startswith("https://"),
        )
        if not given and not secure:
            return None
        if len(given) < len(both) or not secure:
            raise BadConfiguration(
                f"environment variables {names.ENV_MEMBERSHIP_URL}={membership_url!r}, {both[0]} and {both[1]} "
                "do not fit together: an https URL needs both files, an http one none"
            )
        return Credentials(folder(both[0]), folder(both[1]))

    choice(names.ENV_RESTART_POLICY, RESTART_ON_FAILURE, "Never")
    membership_url = url(names.ENV_MEMBERSHIP_URL)
    return Settings(
        run_name=text(names.ENV_RUN_NAME),
        run_uid=text(names.ENV_RUN_UID),
        pod_name=text(names.ENV_POD_NAME),
        pod_uid=text(names.ENV_POD_UID),
        node_name=text(names.ENV_NODE_NAME),
        pod_address=text(names.ENV_POD_ADDRESS),
        slot=number(names.ENV_SLOT, 0),
        incarnation=number(names.ENV_INCARNATION, 0),
        processes=number(names.ENV_PROCESSES, 1),
        membership_url=membership_url,
        spec_file=folder(names.ENV_SPEC_FILE),
        snapshot_dir=folder(names.ENV_SNAPSHOT_DIR),
        termination_log=folder(names.ENV_TERMINATION_LOG),
        log_dir=folder(names.ENV_LOG_DIR),
        cache_dir=folder(names.ENV_CACHE_DIR),
        credentials=credentials(membership_url),
        log_stdout=choice(names.ENV_LOG_STDOUT, "0", "1") == "1",
    )
