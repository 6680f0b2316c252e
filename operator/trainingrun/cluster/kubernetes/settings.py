"""Settings of the operator's programs on a cluster: one frozen class, read once from the environment.

A field `watch_stale_seconds` is the variable TRAININGRUN_WATCH_STALE_SECONDS. The chart sets them; both programs read
them at their start and pass the object on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainingrun.api.errors import UserError

PREFIX = "TRAININGRUN_"


class BadSetting(UserError):
    """An environment variable of the operator is missing or cannot be what it says."""


def _setting(
    help: str,
    default: Any = dataclasses.MISSING,
    choices: tuple[str, ...] = (),
    least: int = 0,
    most: int | None = None,
) -> Any:
    metadata = {"help": help, "choices": choices, "least": least, "most": most}
    if default is dataclasses.MISSING:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class KubeSettings:
    operator_namespace: str = _setting("namespace that the operator itself runs in")
    trainer_image: str = _setting("image of worker pods, unless a run names its own")
    membership_name: str = _setting(
        "name of the membership Service; its CA is in a Secret and a ConfigMap of this name with -ca"
    )
    watch_namespaces: tuple[str, ...] = _setting(
        "namespaces that are looked after, with commas; empty: all", ()
    )
    trainer_image_pull_policy: str = _setting(
        "pull policy of that image", "IfNotPresent", ("Always", "IfNotPresent", "Never")
    )
    membership_port: int = _setting("port of the membership Service (HTTPS)", 8443)
    controller_account: str = _setting("user name of the controller, system:serviceaccount:<ns>:<name>", "")
    health_port: int = _setting("port of /healthz and /readyz", 8081)
    metrics_port: int = _setting("port of /metrics; 0: none", 8080)
    token_file: str = _setting(
        "file with the token that the controller shows to membership", "/var/run/trainingrun/token"
    )
    log_format: str = _setting("how a line of the log looks", "plain", ("plain", "json"))
    log_level: str = _setting("least level that is logged", "INFO", ("DEBUG", "INFO", "WARNING", "ERROR"))
    request_seconds: float = _setting("longest wait for an answer of the API server", 5.0, least=1, most=60)
    membership_seconds: float = _setting(
        "longest wait of the controller for an answer of membership", 2.0, least=1, most=60
    )
    resync_seconds: float = _setting("all runs are looked at this often, whatever was heard", 30.0, least=1)
    cache_seconds: float = _setting("age at which the lists of nodes and of run names are read anew", 5.0)
    watch_inactivity_seconds: float = _setting(
        "a watch without a sign of life for this long is begun anew; the API server gives one about each minute",
        70.0,
        least=10,
    )
    watch_compare_seconds: float = _setting(
        "what the watches told is compared with lists this often", 10.0, least=1, most=30
    )
    watch_stale_seconds: float = _setting(
        "how far a watch may be behind the lists before the controller is not ready", 20.0, least=1
    )
    watch_dead_seconds: float = _setting(
        "how much longer a watch may be behind before the controller is not healthy, and so restarted", 60.0
    )
    heartbeat_seconds: float = _setting(
        "longest silence of the control loop of a healthy program", 120.0, least=1
    )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> KubeSettings:
        """Raises BadSetting, naming the variable, its value and the fix."""
        values = {}
        for item in dataclasses.fields(cls):
            text = environment.get(variable(item), "").strip()
            if text:
                values[item.name] = _parse(item, text)
            elif item.default is dataclasses.MISSING:
                raise BadSetting(
                    f"{variable(item)} is not set: {item.metadata['help']}\n"
                    "  hint: the chart sets it; outside of a cluster, set it yourself"
                )
        return cls(**values)

    @property
    def membership_url(self) -> str:
        return f"https://{self.membership_name}.{self.operator_namespace}.svc:{self.membership_port}"

    @property
    def ca_name(self) -> str:
        """Of the Secret with the CA's key pair, and of the ConfigMap with its certificate."""
        return f"{self.membership_name}-ca"


def variable(item: dataclasses.Field[Any]) -> str:
    """The environment variable of a field."""
    return PREFIX + item.name.upper()


def _parse(item: dataclasses.Field[Any], text: str) -> Any:
    kind, choices = str(item.type), item.metadata["choices"]
    if choices and text not in choices:
        raise BadSetting(f"{variable(item)}: {text!r} is none of {', '.join(choices)}")
    if kind.startswith("tuple"):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind == "str":
        return text
    try:
        number = int(text) if kind == "int" else float(text)
    except ValueError:
        number = -1
    least, most = item.metadata["least"], item.metadata["most"]
    if not least <= number < float("inf") or (most is not None and number > most):
        allowed = f"from {least} on" if most is None else f"from {least} to {most}"
        raise BadSetting(f"{variable(item)}: {text!r} is no number {allowed}: {item.metadata['help']}")
    return number
