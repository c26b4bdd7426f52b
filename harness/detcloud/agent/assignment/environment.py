"""The environment variables of a trial. Only listed variables of the agent are passed on."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from detcloud.shared.certificates import BUNDLE_VARIABLES
from detcloud.shared.proxy_addresses import complete_proxies
from detcloud.shared.trial_directory import TEMPORARY_FOLDER_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from detcloud.agent.allocation.directory import AllocationDirectory
    from detcloud.agent.assignment.agent_user import MachineUser
    from detcloud.agent.slots import Slot

INHERITED = ("LANG", "LANGUAGE", "LD_LIBRARY_PATH", "SSL_CERT_DIR", "TZ", *BUNDLE_VARIABLES)
# Some systems limit the path of a socket to 103 bytes. Python's multiprocessing appends up to 32
# bytes to TMPDIR. With a longer path, the workers of a data loader would hang.
TMPDIR_BYTES_MAX = 70
REGION_VARIABLES = ("AWS_DEFAULT_REGION", "AWS_REGION")
# Google's clients read a key file from this variable, and the address of a metadata service from
# variables with this prefix.
GOOGLE_KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
METADATA_PREFIX = "GCE_METADATA_"
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
PACKAGES = str(Path(__file__).resolve().parents[3])
# The folder of a container in which only the package `detcloud` is mounted.
CONTAINER_PACKAGES = "/run/detcloud"
CONTAINER_AUTHORITIES = f"{CONTAINER_PACKAGES}/authorities.pem"
"""The place in a container where the agent mounts its file of authorities."""
CONTAINER_USER_NAME = "detcloud"
SLOT_TYPE = "DETCLOUD_SLOT_TYPE"
"""The variable with the type of the trial's slots."""


def shared_environment(agent_environment: Mapping[str, str], threads: int) -> dict[str, str]:
    """Return the environment variables that all trials without containers and the fork server have.

    From `agent_environment`, only PATH, locale, time zone, library, certificate and proxy variables
    are copied. The folder of the agent's interpreter is prepended to PATH. `threads` is the number
    of CPU threads for each slot. PYTHONHASHSEED is fixed, so that sets of strings have the same
    order in every run. No GPU is visible.
    """
    environment = {
        k: v for k, v in agent_environment.items() if k in INHERITED or k.startswith("LC_")
    }
    interpreter = str(Path(sys.executable).parent)
    environment["PATH"] = f"{interpreter}:{agent_environment.get('PATH') or DEFAULT_PATH}"
    proxies = complete_proxies(agent_environment)
    return {**environment, **proxies, **_python_environment(threads, PACKAGES)}


def container_environment(
    threads: int,
    agent_environment: Mapping[str, str] = MappingProxyType({}),
    *,
    has_authorities: bool = False,
) -> dict[str, str]:
    """Return the environment variables that all trials in containers have in addition to the image.

    `threads` is the number of CPU threads for each slot. The variables name the user, because the
    image may not list the user's number. No GPU is visible. pip may install packages for the
    Python of the image's system, since a container is deleted with its trial. The proxies are those
    of `agent_environment`. `has_authorities` is whether CONTAINER_AUTHORITIES is mounted.
    """
    names = dict.fromkeys(("USER", "LOGNAME"), CONTAINER_USER_NAME)
    # Images for GPUs request all GPUs by default, even for a trial without GPUs.
    authorities = dict.fromkeys(BUNDLE_VARIABLES, CONTAINER_AUTHORITIES) if has_authorities else {}
    return {
        **names,
        **complete_proxies(agent_environment),
        **authorities,
        **_python_environment(threads, CONTAINER_PACKAGES),
        "NVIDIA_VISIBLE_DEVICES": "void",
        # Otherwise, pip refuses to install packages for Ubuntu's Python, as in PyTorch's image.
        "PIP_BREAK_SYSTEM_PACKAGES": "1",
    }


def user_variables(user: MachineUser | None) -> dict[str, str]:
    """Return the variables with the name of a trial's agent user. Empty for None."""
    return {} if user is None else dict.fromkeys(("USER", "LOGNAME"), user.name)


def _python_environment(threads: int, packages: str) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": packages,
        "CUDA_VISIBLE_DEVICES": "",
        "ROCR_VISIBLE_DEVICES": "",
    }


def trial_environment(
    base: Mapping[str, str],
    variables: object,
    directory: AllocationDirectory,
    slots: Sequence[Slot],
    reserved: Mapping[str, str],
) -> dict[str, str]:
    """Return all environment variables of a trial on `slots`.

    `base` comes first, then the folder for temporary files, the user's `variables`, the trial's
    folders and GPUs, and finally `reserved`. Later variables override earlier variables. NO_PROXY
    also lists this machine and the metadata services if a proxy is set. Reserved names in the
    user's variables are ignored. The user's PYTHONPATH is appended to `base`'s; raise KeyError if
    `base` has none. `variables` may have any form that `variables_by_name` reads.
    """
    environment = dict(base)
    environment["TMPDIR"] = _temporary_folder(directory)
    environment[TEMPORARY_FOLDER_VARIABLE] = str(directory.home / "tmp")
    configured = variables_by_name(variables, device=slot_type(slots))
    environment |= {name: value for name, value in configured.items() if not is_reserved(name)}
    # A user's proxy replaces the machine's in both cases of the variable: programs read either.
    environment |= complete_proxies(environment, configured)
    if "PYTHONPATH" in configured:
        environment["PYTHONPATH"] = f"{base['PYTHONPATH']}{os.pathsep}{configured['PYTHONPATH']}"
    environment["DETCLOUD_WORKER_THREADS"] = configured.get("OMP_NUM_THREADS", "1")
    environment["HOME"] = str(directory.home)
    environment["DETCLOUD_TRIAL_DIR"] = str(directory.path)
    environment |= device_variables(slots, in_container="NVIDIA_VISIBLE_DEVICES" in base)
    return {**environment, **reserved}


def slot_type(slots: Sequence[Slot]) -> str:
    """Return the type of a trial's slots: `cuda`, `rocm`, `mps` or `cpu`. `cpu` without slots."""
    return next((slot.type for slot in slots if slot.type != "cpu"), "cpu")


def device_variables(slots: Sequence[Slot], *, in_container: bool) -> dict[str, str]:
    """Return the variables that make exactly the devices of `slots` visible to a trial.

    ROCm numbers the GPUs that are left after ROCR_VISIBLE_DEVICES from 0. HIP, and PyTorch for
    ROCm, read these numbers. A container with AMD GPUs has the device files of the trial's GPUs
    only.
    """
    variables = {SLOT_TYPE: slot_type(slots)}
    cuda = ",".join(slot.uuid for slot in slots if slot.type == "cuda")
    rocm = [slot for slot in slots if slot.type == "rocm"]
    if not rocm:
        variables["CUDA_VISIBLE_DEVICES"] = cuda
        if cuda and in_container:
            variables["NVIDIA_VISIBLE_DEVICES"] = cuda
        return variables
    numbers = ",".join(map(str, range(len(rocm))))
    handles = [slot.handle or slot.uuid for slot in rocm]
    if in_container and any(map(str.isdecimal, handles)):
        variables["ROCR_VISIBLE_DEVICES"] = numbers
    else:
        variables["ROCR_VISIBLE_DEVICES"] = ",".join(handles)
    names = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    return {**variables, **dict.fromkeys(names, numbers)}


def without_user_variables(
    offered: Mapping[str, str], variables: object, *, device: str
) -> dict[str, str]:
    """Return the cluster's variables `offered` without variables that the user's ones replace.

    A region of the user excludes the cluster's region. Any other AWS variable of the user excludes
    all AWS keys of the cluster for the trial's code, so that clients cannot fall back on them. A
    Google key file or metadata host of the user excludes the cluster's metadata service. `device`
    is the type of the trial's slots.
    """
    names = variables_by_name(variables, device=device)
    own = {name for name in names if name.startswith("AWS_")}
    excluded = set(REGION_VARIABLES if own.intersection(REGION_VARIABLES) else ())
    if own.difference(REGION_VARIABLES):
        excluded |= {name for name in offered if name.startswith("AWS_CONTAINER_")}
    if any(name == GOOGLE_KEY_FILE or name.startswith(METADATA_PREFIX) for name in names):
        excluded |= {name for name in offered if name.startswith(METADATA_PREFIX)}
    return {name: value for name, value in offered.items() if name not in excluded}


def gang_variables(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables with the addresses and ranks by which the nodes of a trial connect.

    A trial on several nodes also gets torch's names, such as MASTER_ADDR and RANK. The agent starts
    a single process on each node, which may start further processes. Missing fields of the spec
    mean a single node on the loopback address.
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
    """Whether the runtime sets the variable, so that the configuration's value is ignored."""
    names = (
        *("HOME", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
        *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    )
    return name in names or name.startswith("DETCLOUD_")


def configured_variables(config: object) -> object:
    """Return the configuration's `environment.environment_variables` unchanged, or None without."""
    section = config.get("environment") if isinstance(config, dict) else None
    return section.get("environment_variables") if isinstance(section, dict) else None


def variables_by_name(variables: object, *, device: str) -> dict[str, str]:
    """Return the values of configured environment variables by name.

    `variables` is a dictionary, a list of NAME=VALUE, or a dictionary of these by kind of device:
    `cuda` selects the entry `cuda` or else `gpu`, `rocm` the entry `rocm`, and any other device the
    entry `cpu`. Values become text. Return an empty dictionary for any other input. Skip empty
    names and null characters.
    """
    if isinstance(variables, dict) and _is_by_device(variables):
        names = {"cuda": ("cuda", "gpu"), "rocm": ("rocm",)}.get(device, ("cpu",))
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
    """Return the path of the trial's own folder for temporary files.

    Return the machine's temporary folder if the path is too long for sockets.
    """
    own = str(directory.home / "tmp")
    return own if len(os.fsencode(own)) <= TMPDIR_BYTES_MAX else tempfile.gettempdir()
