"""The body of the request that creates a trial's container.

The container sees the trial's directory at the path that it has on the machine: `in/` read-only,
`out/`, `code/`, `home/`, the log and a folder for the supervisor's records. It also sees this
package, the checkpoint directory if there is one, and what the configuration mounts.
"""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcloud.agent.assignment.assignment import LaunchImpossible
from detcloud.agent.assignment.bind_mounts import MountImpossible, bind_mounts, is_there
from detcloud.agent.assignment.data_layer import data_layer_mount
from detcloud.agent.assignment.environment import CONTAINER_PACKAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from detcloud.agent.assignment.assignment import Assignment

PYTHON = "python3"
PACKAGE = Path(__file__).resolve().parents[2]
SUPERVISOR = f"{CONTAINER_PACKAGES}/detcloud/launch/supervisor.py"
RECORDS = "container"
SHM_BYTES = 4 << 30
LABEL = "ai.detcloud."
# For collective communication over RDMA, deep recursion, and the files of data loaders.
ULIMITS = {"memlock": -1, "stack": 64 << 20, "nofile": 65_536}
CDI_GPU = "nvidia.com/gpu"
FABRIC_DEVICES = Path("/dev/infiniband")
# The supervisor writes the log; the engine keeps only what is printed before that starts.
ENGINE_LOG = {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}}


@dataclass(frozen=True, slots=True)
class ContainerRules:
    """The operator's decisions for all containers of an agent.

    `user` and `group` are numbers. `mounts_allowed` are the folders of which trials may mount parts
    and devices, None for any. `memory_bytes` of 0 is no limit.
    """

    work: Path
    agent: str
    user: int
    group: int
    mounts_allowed: tuple[Path, ...] | None = None
    memory_bytes: int = 0


def container_body(
    assignment: Assignment,
    rules: ContainerRules,
    limit_of: Callable[[str], int],
    cdi_devices: Collection[str] = (),
) -> dict[str, Any]:
    """The body without image and variables. `limit_of` says how much of an ulimit may be given,
    and `cdi_devices` are the devices that the engine knows by the Container Device Interface.

    Raises LaunchImpossible for mounts and devices that are impossible.
    """
    directory = assignment.directory
    records = str(directory.agent / RECORDS)
    resources = assignment.section("resources")
    shm_bytes = resources.get("shm_size")
    host = {
        "NetworkMode": "host",
        "Mounts": _mounts(assignment, rules),
        "Devices": [
            *(_device(device, rules) for device in resources.get("devices") or ()),
            *_fabric_adapters(assignment),
        ],
        "DeviceRequests": _gpus(assignment, cdi_devices),
        "ShmSize": SHM_BYTES if shm_bytes is None else int(shm_bytes),
        "Ulimits": [_ulimit(name, limit_of(name)) for name in ULIMITS],
        "Memory": rules.memory_bytes,
        "MemorySwap": rules.memory_bytes,
        "SecurityOpt": ["no-new-privileges"],
        "LogConfig": ENGINE_LOG,
    }
    return {
        "User": f"{rules.user}:{rules.group}",
        "WorkingDir": str(directory.code),
        # The supervisor is the container's first process and does what an init would.
        "Entrypoint": [PYTHON, "-I", "-S", SUPERVISOR, records],
        "Cmd": [],
        "Labels": _labels(assignment, rules),
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": host,
    }


def find_changed_mount(body: Mapping[str, Any]) -> str | None:
    """Return a mount or device of `container_body` that is gone or is a link now; None without."""
    host = body.get("HostConfig", {})
    paths = [mount["Source"] for mount in host.get("Mounts", ())]
    paths += [device["PathOnHost"] for device in host.get("Devices", ())]
    return next((path for path in paths if not _has_no_links(path)), None)


def work_label(work: Path) -> str:
    """NAME=VALUE of the label that tells an agent's containers from those of others."""
    return f"{LABEL}work={work}"


def _labels(assignment: Assignment, rules: ContainerRules) -> dict[str, str]:
    values = {
        "cluster": str(assignment.spec.get("cluster_id", "")),
        "agent": rules.agent,
        "allocation": assignment.directory.allocation,
        "directory": str(assignment.directory.agent),
        "work": str(rules.work),
    }
    return {LABEL + name: value for name, value in values.items()}


def _mounts(assignment: Assignment, rules: ContainerRules) -> list[dict[str, Any]]:
    directory = assignment.directory
    paths = (directory.out, directory.code, directory.home, directory.log)
    mounts = [_bind_at_same_path(path) for path in (*paths, directory.agent / RECORDS)]
    mounts.append(_bind(directory.inputs.resolve(), str(directory.inputs), read_only=True))
    mounts.append(_bind(PACKAGE, f"{CONTAINER_PACKAGES}/detcloud", read_only=True))
    if checkpoints := checkpoint_folder(assignment):
        how = assignment.section("checkpoint_storage").get("propagation") or "rprivate"
        real, problem = _real_path(checkpoints)
        if problem:
            raise MountImpossible(f"the folder of checkpoints {checkpoints}: {problem}")
        if assignment.spec["storage"]["type"] != "directory":
            # The configuration names it, as it does the mounts below.
            real = _resolve_allowed(
                "checkpoint_storage:", str(checkpoints), rules, may_be_made=True
            )
        mounts.append(_bind(real, str(checkpoints), how=str(how)))
    if data_layer := data_layer_mount(assignment.config):
        field = "data_layer:"
        real = _resolve_allowed(field, data_layer.host_path, rules, may_be_made=True)
        mounts.append(_bind(real, data_layer.container_path))
    for mount in bind_mounts(assignment.config):
        target = posixpath.normpath(posixpath.join(directory.code, mount.container_path))
        if mount.is_link and not target.startswith(f"{directory.code}/"):
            raise MountImpossible(
                f"bind mount: container_path {mount.container_path!r} is not inside the working "
                "directory; name a folder in it or an absolute path"
            )
        real = _resolve_allowed("bind mount: host_path", mount.host_path, rules)
        mounts.append(_bind(real, target, read_only=mount.read_only, how=mount.propagation))
    targets = [mount["Target"] for mount in mounts]
    for place, target in enumerate(targets):
        if target in targets[:place]:
            raise MountImpossible(f"bind mount: container_path {target} is taken; choose another")
    return mounts


def _has_no_links(path: str) -> bool:
    try:
        return str(Path(path).resolve(strict=True)) == path
    except (OSError, RuntimeError):
        return False


def checkpoint_folder(assignment: Assignment) -> Path | None:
    """The machine's folder of checkpoints, None for a store that has no `path`.

    A `directory` that the configuration does not name is the cluster's own; one that it names is a
    folder inside the container.
    """
    storage = assignment.spec.get("storage")
    if not isinstance(storage, dict) or "path" not in storage:
        return None
    if assignment.section("checkpoint_storage").get("type") == "directory":
        return None
    return Path(str(storage["path"]))


def _device(device: Mapping[str, Any], rules: ContainerRules) -> dict[str, str]:
    host = str(device.get("host_path"))
    return {
        "PathOnHost": str(_resolve_allowed("resources.devices: host_path", host, rules)),
        "PathInContainer": str(device.get("container_path") or host),
        "CgroupPermissions": str(device.get("mode") or "mrw"),
    }


def _fabric_adapters(assignment: Assignment) -> list[dict[str, str]]:
    """The machine's adapters for RDMA, such as Elastic Fabric Adapters, for a trial on several
    machines, in which it has whole ones.
    """
    if int(assignment.spec.get("nodes", 1)) < 2:
        return []
    return [
        {"PathOnHost": str(path), "PathInContainer": str(path), "CgroupPermissions": "rw"}
        for path in sorted(FABRIC_DEVICES.glob("uverbs*"))
    ]


def _resolve_allowed(
    what: str, path: str, rules: ContainerRules, *, may_be_made: bool = False
) -> Path:
    """The path without its links, if it may be mounted; the links may soon lead elsewhere."""
    allowed = rules.mounts_allowed
    real, problem = _real_path(Path(path))
    if allowed is not None and not any(real.is_relative_to(one.resolve()) for one in allowed):
        names = ", ".join(map(str, allowed)) or "none"
        raise LaunchImpossible(f"{what} {path} is not allowed on this agent; allowed are: {names}")
    if problem:
        raise MountImpossible(f"{what} {path} cannot be used on this agent's machine: {problem}")
    if not may_be_made and not is_there(real):
        raise MountImpossible(
            f"{what} {path} does not exist on this agent's machine; create it there or correct the "
            "path"
        )
    return real


def _real_path(path: Path) -> tuple[Path, str]:
    """The path without its links; where that fails, as it is written, with the reason."""
    try:
        return path.resolve(), ""
    except RuntimeError:
        problem = "its links lead to each other; remove them"
    except (OSError, ValueError) as error:
        problem = f"{getattr(error, 'strerror', None) or error}; correct the path"
    return Path(os.path.normpath(path)), problem


def _gpus(assignment: Assignment, cdi_devices: Collection[str]) -> list[dict[str, Any]]:
    """The request for GPUs. Those that NVIDIA's hook adds are taken away again when systemd reloads
    its units, unless the engine manages cgroups itself; those of the interface stay.
    """
    uuids = [slot.uuid for slot in assignment.slots if slot.type == "cuda"]
    if not uuids:
        return []
    names = [f"{CDI_GPU}={uuid}" for uuid in uuids]
    if set(names) <= set(cdi_devices):
        return [{"Driver": "cdi", "DeviceIDs": names}]
    return [{"Driver": "nvidia", "DeviceIDs": uuids, "Capabilities": [["gpu"]]}]


def _ulimit(name: str, limit: int) -> dict[str, Any]:
    """The useful limit, but not more than the machine may give; -1 is unlimited."""
    useful = ULIMITS[name]
    value = useful if limit < 0 else limit if useful < 0 else min(useful, limit)
    return {"Name": name, "Soft": value, "Hard": value}


def _bind_at_same_path(path: Path) -> dict[str, Any]:
    return _bind(path.resolve(), str(path))


def _bind(
    source: Path, target: str, *, read_only: bool = False, how: str = "rprivate"
) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": str(source),
        "Target": target,
        "ReadOnly": read_only,
        "BindOptions": {"Propagation": how},
    }
