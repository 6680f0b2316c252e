"""What in a worker pod is the operator's own: paths, volumes, labels and variables that nobody else may set.

Data only. Used by the rules of `spec.podTemplate`, which refuse them, and by the rendered pod, which sets them.
"""

from __future__ import annotations

CONTAINER = "trainer"
"""The one container of a worker pod."""

# Paths in the container.
CLAIMS_DIR = "/mnt/claims"  # each claim of a pvc:// URI, under its name
CONFIG_DIR = "/var/run/trainingrun"  # token, CA, spec
WORK_DIR = "/var/lib/trainingrun"  # snapshots, logs, cache, home
SNAPSHOT_DIR = f"{WORK_DIR}/snapshots"
LOG_DIR = f"{WORK_DIR}/logs"
CACHE_DIR = f"{WORK_DIR}/cache"
HOME_DIR = f"{WORK_DIR}/home"
TEMPORARY_DIR = "/tmp"
SHARED_MEMORY_DIR = "/dev/shm"
TERMINATION_LOG = "/dev/termination-log"

USED_PATHS = (CLAIMS_DIR, CONFIG_DIR, WORK_DIR, TEMPORARY_DIR, "/dev", "/proc", "/sys", "/run", "/var/run")
"""Nothing may be mounted at them, below them, or at what holds one of them."""

VOLUME_PREFIX = "trainingrun-"
VARIABLE_PREFIX = "TRAININGRUN_"
RANK_VARIABLES = (
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_RUN_ID",
    "WORLD_SIZE",
)
"""Set by the agent for each process of each epoch: a value of the manifest's would be lost in silence."""

KEY_PREFIXES = (
    "trainingrun.dev/",
    "app.kubernetes.io/",  # ours; Argo CD tells by app.kubernetes.io/instance what belongs to an application
    "argocd.argoproj.io/",  # would make the pod a part of an application, which then prunes it
    "container.apparmor.security.beta.kubernetes.io/",  # would loosen what securityContext says
    "seccomp.security.alpha.kubernetes.io/",
)
"""Prefixes of labels and annotations that a manifest cannot set on pods."""


def path_in_use(path: str) -> str:
    """The path of ours that a mount at the absolute `path` would touch; "" when there is none."""
    wanted = path.rstrip("/") + "/"
    for used in USED_PATHS:
        if wanted.startswith(f"{used}/") or f"{used}/".startswith(wanted):
            return used
    return ""
