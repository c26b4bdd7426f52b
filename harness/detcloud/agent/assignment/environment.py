"""The environment variables of a trial: an allow-list, never the agent's whole environment."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcloud.shared.trial_directory import TEMPORARY_FOLDER_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from detcloud.agent.allocation.directory import AllocationDirectory
    from detcloud.agent.slots import Slot

INHERITED = ("LANG", "LANGUAGE", "LD_LIBRARY_PATH", "SSL_CERT_DIR", "SSL_CERT_FILE", "TZ")
# The address of a socket ends after 103 bytes on some systems, and Python's processes append up to
# 32 to this folder for theirs: the workers of a data loader would hang.
TMPDIR_BYTES_MAX = 70
REGION_VARIABLES = ("AWS_DEFAULT_REGION", "AWS_REGION")
# Google's clients take credentials from the first, and a metadata service from what begins so.
GOOGLE_KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
METADATA_PREFIX = "GCE_METADATA_"
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
PACKAGES = str(Path(__file__).resolve().parents[3])
# The folder of a container in which this package alone is mounted.
CONTAINER_PACKAGES = "/run/detcloud"
CONTAINER_USER_NAME = "detcloud"


def shared_environment(agent_environment: Mapping[str, str], threads: int) -> dict[str, str]:
    """The variables of all trials, and of the fork server.

    Of `agent_environment` only PATH, locale, time zone, library and certificate paths pass;
    `threads` are the CPU threads for each slot. Strings hash the same in every trial, or a set of
    them would have an order of its own each time.
    """
    environment = {
        k: v for k, v in agent_environment.items() if k in INHERITED or k.startswith("LC_")
    }
    interpreter = str(Path(sys.executable).parent)
    environment["PATH"] = f"{interpreter}:{agent_environment.get('PATH') or DEFAULT_PATH}"
    return {**environment, **_python_environment(threads, PACKAGES)}


def container_environment(threads: int) -> dict[str, str]:
    """The variables of all trials in containers, over those of their image.

    The user's number need not be in the image's list of users, so its name is given here.
    """
    names = dict.fromkeys(("USER", "LOGNAME"), CONTAINER_USER_NAME)
    # Images made for GPUs ask for all of them, also where a trial has none.
    return {
        **names,
        **_python_environment(threads, CONTAINER_PACKAGES),
        "NVIDIA_VISIBLE_DEVICES": "void",
    }


def _python_environment(threads: int, packages: str) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": packages,
        "CUDA_VISIBLE_DEVICES": "",
    }


def trial_environment(
    base: Mapping[str, str],
    variables: object,
    directory: AllocationDirectory,
    slots: Sequence[Slot],
    reserved: Mapping[str, str],
) -> dict[str, str]:
    """The variables of a trial on `slots`, over those in `base`.

    `variables`, in any form that `variables_by_name` reads, may override all but those that
    `is_reserved` and those in `reserved`.
    """
    environment = dict(base)
    environment["TMPDIR"] = _temporary_folder(directory)
    environment[TEMPORARY_FOLDER_VARIABLE] = str(directory.home / "tmp")
    devices = [slot for slot in slots if slot.type == "cuda"]
    configured = variables_by_name(variables, cuda=bool(devices))
    environment |= {name: value for name, value in configured.items() if not is_reserved(name)}
    if "PYTHONPATH" in configured:
        environment["PYTHONPATH"] = f"{base['PYTHONPATH']}{os.pathsep}{configured['PYTHONPATH']}"
    environment["DETCLOUD_WORKER_THREADS"] = configured.get("OMP_NUM_THREADS", "1")
    environment["HOME"] = str(directory.home)
    environment["DETCLOUD_TRIAL_DIR"] = str(directory.path)
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(slot.uuid for slot in devices)
    if devices and "NVIDIA_VISIBLE_DEVICES" in base:
        environment["NVIDIA_VISIBLE_DEVICES"] = environment["CUDA_VISIBLE_DEVICES"]
    return {**environment, **reserved}


def without_user_variables(
    offered: Mapping[str, str], variables: object, *, cuda: bool
) -> dict[str, str]:
    """The cluster's variables for clouds' clients, without those that the user's variables replace.

    The user's own region and keys take precedence. If the user sets keys, the code gets none of
    the cluster's, so that it cannot fall back on them.
    """
    names = variables_by_name(variables, cuda=cuda)
    own = {name for name in names if name.startswith("AWS_")}
    excluded = set(REGION_VARIABLES if own.intersection(REGION_VARIABLES) else ())
    if own.difference(REGION_VARIABLES):
        excluded |= {name for name in offered if name.startswith("AWS_CONTAINER_")}
    if any(name == GOOGLE_KEY_FILE or name.startswith(METADATA_PREFIX) for name in names):
        excluded |= {name for name in offered if name.startswith(METADATA_PREFIX)}
    return {name: value for name, value in offered.items() if name not in excluded}


def gang_variables(spec: Mapping[str, Any]) -> dict[str, str]:
    """The addresses and ranks by which the nodes of a trial find each other.

    Several nodes have the names of distributed training too. A node has one process, which may
    start others.
    """
    nodes, node_rank = int(spec.get("nodes", 1)), int(spec.get("node_rank", 0))
    hosts = [str(host) for host in spec.get("hosts") or ["127.0.0.1"]]
    port = str(spec.get("rendezvous_port", 0))
    variables = {
        "DETCLOUD_NODES": str(nodes),
        "DETCLOUD_NODE_RANK": str(node_rank),
        "DETCLOUD_HOSTS": ",".join(hosts),
        "DETCLOUD_RENDEZVOUS_PORT": port,
        "DETCLOUD_SLOTS": str(len(spec.get("slots") or ())),
    }
    if nodes == 1:
        return variables
    return {
        **variables,
        "MASTER_ADDR": hosts[0],
        "MASTER_PORT": port,
        "NODE_RANK": str(node_rank),
        "RANK": str(spec.get("rank", node_rank)),
        "WORLD_SIZE": str(spec.get("size", nodes)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }


def is_reserved(name: str) -> bool:
    """Whether the runtime sets that variable itself, which overrides the configuration."""
    names = ("HOME", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
    return name in names or name.startswith("DETCLOUD_")


def configured_variables(config: object) -> object:
    """The configuration's `environment.environment_variables`, in any of their forms."""
    section = config.get("environment") if isinstance(config, dict) else None
    return section.get("environment_variables") if isinstance(section, dict) else None


def variables_by_name(variables: object, *, cuda: bool) -> dict[str, str]:
    """The variables of a map, of a list of NAME=VALUE, or of one such per kind of device."""
    if isinstance(variables, dict) and _is_by_device(variables):
        names = ("cuda", "gpu") if cuda else ("cpu",)
        variables = next((variables[name] for name in names if variables.get(name)), None)
    if isinstance(variables, dict):
        pairs = [(str(name), str(value)) for name, value in variables.items()]
    elif isinstance(variables, list):
        pairs = [(name, value) for name, _, value in (str(v).partition("=") for v in variables)]
    else:
        pairs = []
    return {name: value for name, value in pairs if name and "\0" not in name + value}


def _is_by_device(variables: dict[str, Any]) -> bool:
    return all(
        name in ("cpu", "cuda", "gpu", "rocm") and (value is None or isinstance(value, list | dict))
        for name, value in variables.items()
    )


def _temporary_folder(directory: AllocationDirectory) -> str:
    """The trial's own folder, or the machine's where that path is too long for a socket."""
    own = str(directory.home / "tmp")
    return own if len(os.fsencode(own)) <= TMPDIR_BYTES_MAX else tempfile.gettempdir()
