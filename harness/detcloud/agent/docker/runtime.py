"""The runtime that starts, watches and stops trials as containers of Docker's engine.

The supervisor is the first process in a container. The supervisor writes the log and the exit to
files of the allocation, so that neither depends on an agent or on the engine's log. A container can
write these files. The agent therefore learns from the engine that a container ended, and reads only
the kind of end from the files.
"""

from __future__ import annotations

import os
import resource
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcloud.agent.allocation.start_times import IMAGE, PACKAGES
from detcloud.agent.assignment.agent_user import find_machine_user, read_agent_user
from detcloud.agent.assignment.assignment import LaunchImpossible
from detcloud.agent.assignment.checkpoint_folder import prepare_checkpoint_folder
from detcloud.agent.assignment.data_layer import data_layer_mount, make_owned_folder
from detcloud.agent.assignment.declared_packages import (
    ENTER_MODULE,
    INSTALL_MODULE,
    write_request,
)
from detcloud.agent.assignment.environment import container_environment, user_variables
from detcloud.agent.assignment.hook_downloads import download_variables, hook_downloads
from detcloud.agent.assignment.kernel_cache import kernel_folder, kernel_variables
from detcloud.agent.assignment.unused_settings import container_notices
from detcloud.agent.docker.container import (
    LABEL,
    PYTHON,
    RECORDS,
    checkpoint_folder,
    container_body,
    work_label,
)
from detcloud.agent.docker.control_groups import group_processes
from detcloud.agent.docker.early_pull import EarlyPull
from detcloud.agent.docker.engine import EngineError, EngineUnavailable
from detcloud.agent.docker.exec_stream import start_module
from detcloud.agent.docker.image_cache import ImageCache
from detcloud.agent.docker.images import Image, image_request
from detcloud.agent.docker.launch import KILL_FILE, REQUEST_FILE, ContainerLaunch
from detcloud.agent.package_cache import DECLARED, declared_layers
from detcloud.agent.runtime import Launch, Phase, Status
from detcloud.shared.files import write_atomically
from detcloud.shared.trial_directory import DATA_LAYER_PATH

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from detcloud.agent.assignment.agent_user import MachineUser
    from detcloud.agent.assignment.assignment import Assignment
    from detcloud.agent.docker.container import ContainerRules
    from detcloud.agent.docker.engine import EngineClient
    from detcloud.agent.docker.images import Image
    from detcloud.agent.runtime import LoginIssuer

# By default, engines send SIGKILL 10 s after SIGTERM.
UNASKED_GRACE_SECONDS = 8.0
SWEEP_SECONDS = 60.0
SWEEP_TROUBLE_SECONDS = 5.0
LIMITS = {
    "memlock": resource.RLIMIT_MEMLOCK,
    "stack": resource.RLIMIT_STACK,
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
}
CAP_SYS_RESOURCE = 24


class DockerRuntime:
    """The runtime that runs each launch as a container, labelled with the agent's work directory.

    See ContainerRuntime for the contract of the methods. A thread of each launch sends the requests
    to the engine. `rules` are the operator's rules, `log_line` writes to the agent's log. `images`
    are the agent's images; None means a record of images in the agent's work directory.
    """

    def __init__(
        self,
        engine: EngineClient,
        rules: ContainerRules,
        log_line: Callable[[str], None],
        images: ImageCache | None = None,
    ) -> None:
        self._engine = engine
        self._rules = rules
        self._log_line = log_line
        self._images = images or ImageCache(engine, rules.work / "images.json", log_line)
        self._early_pull = EarlyPull(self._images, log_line)
        self._launches: dict[Path, ContainerLaunch] = {}
        self._changing = threading.Lock()
        self._sweep = threading.Event()
        self._closed = False

    @property
    def owner(self) -> tuple[int, int] | None:
        """The user and group ids of containers without an agent user. None for the agent's own."""
        owner = self._rules.user, self._rules.group
        if self._rules.is_rootless:
            return None
        return None if owner == (os.getuid(), os.getgid()) else owner

    def adopt(self, directories: Sequence[Path]) -> None:
        """Watch the containers of the launches in `directories` that contain container.json.

        Start a thread that removes all other containers with this agent's label, now and every
        SWEEP_SECONDS.
        """
        for directory in directories:
            if (directory / REQUEST_FILE).exists():
                self._watch(directory)
        threading.Thread(target=self._run_sweeps, name="container sweep", daemon=True).start()

    def expect_image(self, image: str, issue_login: LoginIssuer | None = None) -> None:
        """Pull the image in a thread, if the machine lacks it and no trial came before."""
        self._early_pull.begin(image, issue_login)

    def prepare(self, assignment: Assignment, is_needed: Callable[[], bool]) -> Launch:
        """Pull the image if needed, prepare the trial's files, and return the container's launch.

        Write notices about unused settings and the image to the trial's log. Create the folders of
        kernels, checkpoints and the data layer if needed. Fetch layers of declared packages and the
        downloads of the hook. Make the containers' user the owner of the trial's files.

        Raises:
            LaunchImpossible: a mount, a device or the image is impossible or not allowed.
            PullFailed: all attempts to pull the image failed.
            PullStopped: `is_needed` returned False.
            EngineUnavailable, EngineError: the engine failed.
            OSError: a file cannot be written.
        """
        directory = assignment.directory
        name = image_name(assignment)
        notices = container_notices(assignment.config, name, device=assignment.device)
        directory.write_notices([*notices, *assignment.slot_notices()])
        kernels = kernel_folder(assignment, name)
        own = [] if kernels is None else [kernels]
        if assignment.packages:
            own.append(declared_layers(directory.environments, assignment.spec))
        downloads = hook_downloads(assignment, name)
        if downloads is not None:
            own.append(downloads)
        user = self._find_user(assignment)
        body = self._container_body(assignment, own, user)
        image = self._obtain_image(assignment, name, is_needed)
        network = container_environment(
            assignment.threads,
            os.environ,
            has_authorities=self._rules.authorities is not None,
        )
        base = {
            **network,
            **user_variables(user),
            **kernel_variables(kernels),
            **download_variables(downloads, assignment),
        }
        if image.python_path:
            base["PYTHONPATH"] += f":{image.python_path}"
        mount = data_layer_mount(assignment.config)
        place = {DATA_LAYER_PATH: mount.container_path} if mount is not None else {}
        environment = assignment.environment(base, place)
        variables = [f"{name}={value}" for name, value in environment.items()]
        if assignment.packages:
            write_request(assignment, image.digest)
            if assignment.layers is not None:
                # Only the container's own Python knows the key.
                cache = declared_layers(directory.environments, assignment.spec)
                with assignment.start_times.measure(PACKAGES):
                    assignment.layers.obtain(DECLARED, cache, "")
        directory.change_owner()
        self._open_checkpoint_folder(assignment)
        if mount is not None:
            make_owned_folder(Path(mount.host_path), directory.owner)
        return Launch(
            container_stages(assignment, directory.agent / RECORDS),
            environment,
            str(directory.code),
            str(directory.log),
            assignment.log_bytes_max,
            container={**body, "Image": image.id, "Env": variables},
            user=user,
            facts=_facts(image, user),
        )

    def _find_user(self, assignment: Assignment) -> MachineUser | None:
        """Return the agent user of the trial. None for the user of the rules.

        An engine without root runs trials of the agent's own user only, which the rules name. Raise
        AgentUserUnavailable if the machine knows the user's number by another name.
        """
        user = read_agent_user(assignment.spec)
        return None if user is None or self._rules.is_rootless else find_machine_user(user)

    def _container_body(
        self, assignment: Assignment, own_folders: Sequence[Path], user: MachineUser | None
    ) -> dict[str, Any]:
        """Return the request that creates the container, see `container_body`."""
        devices = self._engine.cdi_devices() if assignment.device == "cuda" else frozenset[str]()
        limit_of = own_limit if self._rules.is_rootless else ulimit_available
        return container_body(assignment, self._rules, limit_of, devices, own_folders, user=user)

    def start(self, directory: Path, launch: Launch) -> None:
        """Write container.json, and start the launch's thread, which creates the container.

        Raise RuntimeError if container.json exists. Raise OSError if a file cannot be written.
        """
        if (directory / REQUEST_FILE).exists():
            raise RuntimeError(f"{directory} already has a container")
        assert launch.container is not None
        self._write_records(directory, launch)
        identity = os.urandom(8).hex()
        labels = {**launch.container["Labels"], f"{LABEL}launch": identity}
        request = {
            "launch": identity,
            # Another runtime would not find the container.
            "runtime": self._rules.runtime,
            "log": launch.log,
            # `has_hook` also covers other stages; the name is older than these stages.
            "has_hook": len(launch.stages) > 1,
            "body": {**launch.container, "Labels": labels},
        }
        write_atomically(directory / REQUEST_FILE, request)
        self._watch(directory)

    def poll(self, directory: Path) -> Status:
        """Return the status that the launch's thread saw last. ABSENT for an unknown launch."""
        launch = self._launches.get(directory)
        return launch.poll() if launch is not None else Status(Phase.ABSENT)

    def kill(self, directory: Path, grace_ms: int, *, saves: bool = False) -> None:
        """Write kill.json, and wake the launch's thread, which stops the container.

        Raise OSError if the file cannot be written.
        """
        write_atomically(directory / KILL_FILE, {"grace_ms": grace_ms, "saves": saves})
        launch = self._launches.get(directory)
        if launch is not None:
            launch.wake()

    def processes(self, directory: Path) -> list[int]:
        """Return the ids of the processes in the container's control group.

        Return an empty list if the engine does not answer.
        """
        launch = self._launches.get(directory)
        if launch is None:
            return []
        try:
            found = self._engine.inspect_container(launch.name) or {}
        except (EngineUnavailable, EngineError):
            return []
        return group_processes(int((found.get("State") or {}).get("Pid") or 0))

    def spawn(self, directory: Path, module: str) -> socket.socket:
        """Start a module in the container, and return a socket with the input and output.

        A thread sends the requests to the engine and passes on the bytes. Raise OSError for an
        unknown launch.
        """
        launch = self._launches.get(directory)
        if launch is None:
            raise FileNotFoundError(f"{directory} has no container")
        command = (*enter_overlay(directory), PYTHON, "-P", "-m", module)
        return start_module(self._engine, launch.name, command, self._log_line)

    def remove(self, directory: Path) -> None:
        """Stop the launch's thread. A sweep removes the container once the engine answers.

        Do nothing else for an unknown launch.
        """
        with self._changing:
            launch = self._launches.pop(directory, None)
        if launch is not None:
            launch.close()
        self._sweep.set()

    def release_idle_resources(self) -> None:
        """Do nothing, since the runtime has no idle resources."""

    def close(self) -> None:
        """Stop all threads. The containers continue."""
        self._closed = True
        self._sweep.set()
        for launch in list(self._launches.values()):
            launch.close()

    def _obtain_image(
        self, assignment: Assignment, name: str, is_needed: Callable[[], bool]
    ) -> Image:
        """Return the trial's image, after an early pull or a pull of the trial's own.

        The digest is written to the trial's log. The seconds of the pull are the time for which the
        trial waited, and count as the phase `image` of the start. Raise as `prepare` does.
        """
        directory, section = assignment.directory, assignment.section("environment")

        def write_notice(text: str) -> None:
            directory.write_notices([f"[detcloud] {text}"])

        request = image_request(name, section, assignment.registry_auth, assignment.issue_login)
        with assignment.start_times.measure(IMAGE):
            waited_seconds = self._early_pull.await_image(name, is_needed, write_notice)
            if failure := self._early_pull.take_failure(name):
                write_notice(f"image {name} was not pulled before this trial: {failure}")
                assignment.start_times.early_pull_failure = failure
            image = self._images.obtain_image(request, is_needed, write_notice)
        if waited_seconds and not image.pull_seconds:
            image = replace(image, pull_seconds=f"{waited_seconds:.1f}")
        write_notice(f"image {image.name}, {image.digest}")
        return image

    def _open_checkpoint_folder(self, assignment: Assignment) -> None:
        """Create the machine's folder of checkpoints, with subfolders that the trial may write.

        Do nothing if the store needs no folder. Subfolders for the experiment and trial are created
        and given to the container's user only if the agent and the folder belong to root.
        """
        folder = checkpoint_folder(assignment)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            prepare_checkpoint_folder(folder, assignment)

    def _write_records(self, directory: Path, launch: Launch) -> None:
        """Write launch.json for the supervisor into the folder RECORDS of `directory`.

        Create the folder with mode 0700. Folder and file belong to the user of the container. Raise
        OSError if either cannot be written.
        """
        records = directory / RECORDS
        records.mkdir(mode=0o700, exist_ok=True)
        record = {
            "stages": launch.stages,
            # The engine passes the variables to the container.
            "environment": None,
            "cwd": launch.cwd,
            "log": launch.log,
            "log_bytes_max": launch.log_bytes_max,
            "unasked_grace_seconds": UNASKED_GRACE_SECONDS,
        }
        owner = self.owner if launch.user is None else (launch.user.uid, launch.user.gid)
        write_atomically(records / "launch.json", record, owner=owner)
        if owner is not None:
            os.chown(records, *owner)

    def _watch(self, directory: Path) -> None:
        launch = ContainerLaunch(self._engine, directory, self._log_line)
        with self._changing:
            self._launches[directory] = launch
        launch.start_watching()

    def _run_sweeps(self) -> None:
        while not self._closed:
            self._sweep.clear()
            try:
                self._sweep_containers()
                pause = SWEEP_SECONDS
            except (EngineUnavailable, EngineError):
                pause = SWEEP_TROUBLE_SECONDS
            self._sweep.wait(pause)

    def _sweep_containers(self) -> None:
        """Kill and remove all containers with this agent's label that no launch watches."""
        # A launch requested each container, and all living launches are known after `adopt`.
        for entry in self._engine.list_containers(work_label(self._rules.work)):
            directory = Path((entry.get("Labels") or {}).get(f"{LABEL}directory", ""))
            if directory not in self._launches and not self._closed:
                self._engine.remove_container(str(entry["Id"]))


def _facts(image: Image, user: MachineUser | None) -> dict[str, str]:
    """Return the fields of the trial's `environment` record about the image and the agent user."""
    return {
        "image": image.name,
        "image_digest": image.digest,
        **({} if user is None else {"agent_user": user.label}),
        **({"image_pull_seconds": image.pull_seconds} if image.pull_seconds else {}),
    }


def enter_overlay(directory: Path) -> tuple[str, ...]:
    """Return the words before a command that set the variables of the trial's declared packages.

    Empty without declared packages. `directory` is the folder of the launch's records.
    """
    overlay = directory.parent / "home" / ".python"
    python = overlay / "bin" / "python"
    if not os.path.lexists(python):
        return ()
    return (str(python), "-P", "-m", ENTER_MODULE, str(overlay))


def ulimit_available(name: str) -> int:
    """Return the highest value of an ulimit that a container may get.

    `name` is a key of LIMITS. Return the agent's own hard limit, or -1 if the engine may exceed it.
    """
    return -1 if _may_raise_limits() else own_limit(name)


def own_limit(name: str) -> int:
    """Return the agent's own hard limit for an ulimit, which an engine without root also has.

    Podman lowers its own limit of processes to the highest process id of the machine.
    """
    limit = resource.getrlimit(LIMITS[name])[1]
    if name != "nproc":
        return limit
    id_max = int(Path("/proc/sys/kernel/pid_max").read_text(encoding="ascii"))
    return id_max if limit < 0 else min(limit, id_max)


def _may_raise_limits() -> bool:
    """Whether root's processes, and so the engine, may raise limits on this machine."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return bool(int(fields.get("CapBnd", "0").strip(), 16) >> CAP_SYS_RESOURCE & 1)


def container_stages(assignment: Assignment, records: Path) -> list[tuple[str, list[str]]]:
    """Return the stages of a container. Declared packages are installed first, in the container.

    `records` is the folder in which the hook's shell creates PASSED_FILE.
    """
    if not assignment.packages:
        return assignment.stages(PYTHON, records)
    overlay = str(assignment.directory.overlay)
    python = f"{overlay}/bin/python"
    install = (PYTHON, "-P", "-m", INSTALL_MODULE, overlay)
    enter = (python, "-P", "-m", ENTER_MODULE, overlay)
    return assignment.stages(python, records, install=install, enter=enter)


def image_name(assignment: Assignment) -> str:
    """Return the image for the trial's slots. Raise LaunchImpossible if none is set."""
    images = assignment.spec.get("image")
    # Containers on a Mac cannot use the GPU.
    device = "cpu" if assignment.device == "mps" else assignment.device
    name = images.get(device) if isinstance(images, dict) else images
    if not name:
        raise LaunchImpossible(
            f"no container image is set for slots of the type {device}; set "
            f"environment.image.{device}"
        )
    return str(name)
