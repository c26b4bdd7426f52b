"""The body of the request that creates a trial's container.

The container sees the trial's directory at the machine's own path: `in/` read-only, `out/`,
`code/`, `home/`, the log and a folder for the supervisor's records. The container also sees this
package, the checkpoint directory if any, and the mounts of the configuration.
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
from detcloud.agent.assignment.environment import CONTAINER_AUTHORITIES, CONTAINER_PACKAGES
from detcloud.agent.docker.amd_gpus import amd_device_entries, amd_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from detcloud.agent.assignment.agent_user import MachineUser
    from detcloud.agent.assignment.assignment import Assignment

PYTHON = "python3"
PACKAGE = Path(__file__).resolve().parents[2]
SUPERVISOR = f"{CONTAINER_PACKAGES}/detcloud/launch/supervisor.py"
RECORDS = "container"
SHM_BYTES = 4 << 30
LABEL = "ai.detcloud."
# The ulimits for collective communication over RDMA, deep recursion, and data loaders' files.
ULIMITS = {"memlock": -1, "stack": 64 << 20, "nofile": 65_536, "nproc": -1}
CDI_GPU = "nvidia.com/gpu"
# The supervisor writes the log. The engine only keeps output from before the supervisor's start.
ENGINE_LOG = {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}}


@dataclass(frozen=True, slots=True)
class ContainerRules:
    """The operator's rules for all containers of an agent."""

    work: Path
    """The agent's work directory."""
    agent: str
    """The agent's name."""
    user: int
    """The number of the user that containers run as."""
    group: int
    """The number of the group that containers run as."""
    mounts_allowed: tuple[Path, ...] | None = None
    """The folders below which trials may mount folders and devices. None allows any."""
    memory_bytes: int = 0
    """The memory limit of each container. 0 is no limit."""
    fabric_devices: Path = Path("/dev/infiniband")
    """The folder with the devices of the machine's RDMA adapters. The folder may be missing."""
    authorities: Path | None = None
    """The file with the authorities that containers trust. None leaves this to their images."""
    runtime: str = "docker"
    """The name of the runtime, `docker` or `podman`, which a later agent must also have."""
    is_podman: bool = False
    """Whether the engine is Podman."""
    is_rootless: bool = False
    """Whether the engine runs as the agent's user, so that the trials' files are the agent's."""
    user_namespace: str = ""
    """The mode of the containers' user namespace. "" for the engine's default."""


def container_body(
    assignment: Assignment,
    rules: ContainerRules,
    limit_of: Callable[[str], int],
    cdi_devices: Collection[str] = (),
    own_folders: Sequence[Path] = (),
    *,
    user: MachineUser | None = None,
) -> dict[str, Any]:
    """Return the body of the request that creates the container, without image and variables.

    Nothing is sent or written.

    Args:
        assignment: the trial.
        rules: the operator's rules.
        limit_of: returns the highest value that the machine may grant for an ulimit, -1 for any.
        cdi_devices: the names of the engine's Container Device Interface devices.
        own_folders: folders of the agent that the container may write to, at the same paths.
        user: the agent user of the trial. None for the user of the rules.

    Raises:
        LaunchImpossible: a mount or device is not allowed, does not exist or conflicts.
    """
    directory = assignment.directory
    records = str(directory.agent / RECORDS)
    resources = assignment.section("resources")
    shm_bytes = resources.get("shm_size")
    host = {
        "NetworkMode": "host",
        "Mounts": trial_mounts(
            assignment, rules, [assignment.directory.log, *own_folders, Path(records)]
        ),
        "Devices": [
            *trial_devices(assignment, rules),
            *amd_device_entries(assignment.slots),
        ],
        "GroupAdd": [
            *amd_groups(assignment.slots),
            *(str(group) for group in (() if user is None else user.groups)),
        ],
        "DeviceRequests": _gpus(assignment, cdi_devices, has_cdi=rules.is_podman),
        "ShmSize": SHM_BYTES if shm_bytes is None else int(shm_bytes),
        "Ulimits": [_ulimit(name, limit_of(name)) for name in _ulimit_names(rules)],
        "Memory": rules.memory_bytes,
        "MemorySwap": rules.memory_bytes,
        # Podman's labels of SELinux would hide the mounted folders of the machine.
        "SecurityOpt": ["no-new-privileges", *(["label=disable"] if rules.is_podman else [])],
        **({"UsernsMode": rules.user_namespace} if rules.user_namespace else {}),
        "LogConfig": ENGINE_LOG,
    }
    return {
        "User": f"{rules.user}:{rules.group}" if user is None else f"{user.uid}:{user.gid}",
        "WorkingDir": str(directory.code),
        # The supervisor is the container's first process and does what an init would.
        "Entrypoint": [PYTHON, "-I", "-S", SUPERVISOR, records],
        "Cmd": [],
        "Labels": _labels(assignment, rules),
        # Podman would create a timer of systemd for a check that is switched off.
        **({} if rules.is_podman else {"Healthcheck": {"Test": ["NONE"]}}),
        "HostConfig": host,
    }


def find_changed_mount(body: Mapping[str, Any]) -> str | None:
    """Return the first mounted path of a `container_body` that is gone or contains a link now.

    Devices count as well. Return None if no path has changed.
    """
    host = body.get("HostConfig", {})
    paths = [mount["Source"] for mount in host.get("Mounts", ())]
    paths += [device["PathOnHost"] for device in host.get("Devices", ())]
    return next((path for path in paths if not _has_no_links(path)), None)


def work_label(work: Path) -> str:
    """Return the label NAME=VALUE of all containers of the agent with this work directory."""
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


def trial_devices(assignment: Assignment, rules: ContainerRules) -> list[dict[str, str]]:
    """Return the configured devices and the RDMA adapters, as device entries of the engine's API.

    Raise LaunchImpossible if a device is not allowed or does not exist.
    """
    devices = assignment.section("resources").get("devices") or ()
    return [*(_device(device, rules) for device in devices), *_fabric_adapters(assignment, rules)]


def trial_mounts(
    assignment: Assignment, rules: ContainerRules, own_paths: Sequence[Path]
) -> list[dict[str, Any]]:
    """Return the mounts of a trial's container, in the form of the engine's API.

    `own_paths` are the agent's further files and folders, mounted at the same paths. Raise
    LaunchImpossible if a configured mount is not allowed, does not exist or conflicts.
    """
    directory = assignment.directory
    paths = (directory.out, directory.code, directory.home, *own_paths)
    mounts = [_bind_at_same_path(path) for path in paths]
    mounts.append(_bind(directory.inputs.resolve(), str(directory.inputs), read_only=True))
    mounts.append(_bind(PACKAGE, f"{CONTAINER_PACKAGES}/detcloud", read_only=True))
    if rules.authorities is not None:
        mounts.append(_bind(rules.authorities.resolve(), CONTAINER_AUTHORITIES, read_only=True))
    if checkpoints := checkpoint_folder(assignment):
        how = assignment.section("checkpoint_storage").get("propagation") or "rprivate"
        real, problem = _real_path(checkpoints)
        if problem:
            raise MountImpossible(f"the folder of checkpoints {checkpoints}: {problem}")
        if assignment.spec["storage"]["type"] != "directory":
            # The configuration names the folder, so the same rules apply as for bind mounts.
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
    """Return the machine's folder of checkpoints that must be mounted.

    Return None for a store without a `path`, and for a configured store of type `directory`, whose
    folder lies inside the container. A `directory` store that is not configured is the cluster's
    own folder.
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


def _fabric_adapters(assignment: Assignment, rules: ContainerRules) -> list[dict[str, str]]:
    """Return the machine's RDMA adapters, for example Elastic Fabric Adapters, as device entries.

    Return an empty list for a trial on a single machine.
    """
    if int(assignment.spec.get("nodes", 1)) < 2:
        return []
    return [
        {"PathOnHost": str(path), "PathInContainer": str(path), "CgroupPermissions": "rw"}
        for path in sorted(rules.fabric_devices.glob("uverbs*"))
    ]


def _resolve_allowed(
    what: str, path: str, rules: ContainerRules, *, may_be_made: bool = False
) -> Path:
    """Return the path with all links resolved, if the path may be mounted.

    `what` names the setting in error messages. `may_be_made` allows a missing path. Raise
    LaunchImpossible if the rules do not allow the path. Raise MountImpossible if the path is
    unusable or does not exist. The caller mounts the result, since links may change.
    """
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
    """Return the path with all links resolved, and an empty text.

    If links cannot be resolved, return the normalised path and the problem with advice.
    """
    try:
        return path.resolve(), ""
    except RuntimeError:
        problem = "its links lead to each other; remove them"
    except (OSError, ValueError) as error:
        problem = f"{getattr(error, 'strerror', None) or error}; correct the path"
    return Path(os.path.normpath(path)), problem


def _gpus(
    assignment: Assignment, cdi_devices: Collection[str], *, has_cdi: bool
) -> list[dict[str, Any]]:
    """Return the device requests for NVIDIA GPUs and MIG instances. Empty without such slots.

    Use the Container Device Interface if the engine lists all GPUs there, else NVIDIA's hook. An
    engine with `has_cdi`, such as Podman, has the interface only and lists no devices. When
    systemd reloads its units, a container may lose GPUs of NVIDIA's hook, but not GPUs of the
    interface.
    """
    uuids = [slot.uuid for slot in assignment.slots if slot.type == "cuda"]
    if not uuids:
        return []
    names = [f"{CDI_GPU}={uuid}" for uuid in uuids]
    if has_cdi or set(names) <= set(cdi_devices):
        return [{"Driver": "cdi", "DeviceIDs": names}]
    return [{"Driver": "nvidia", "DeviceIDs": uuids, "Capabilities": [["gpu"]]}]


def _ulimit_names(rules: ContainerRules) -> list[str]:
    """Return the names of the ulimits to set.

    Podman raises the number of processes by itself, which can be forbidden. Docker does not.
    """
    return [name for name in ULIMITS if rules.is_podman or name != "nproc"]


def _ulimit(name: str, limit: int) -> dict[str, Any]:
    """Return the ulimit entry: the value in ULIMITS, but at most `limit`. -1 is unlimited."""
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
