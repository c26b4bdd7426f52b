"""The runtime that runs trials in containers of Apptainer.

The supervisor runs on the machine and starts each stage in a container of the image. Apptainer has
no service: the containers are child processes of the supervisor, which survive the agent.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcloud.agent.allocation.start_times import IMAGE, PACKAGES
from detcloud.agent.apptainer.images import SifStore
from detcloud.agent.apptainer.program import (
    ContainerPlace,
    exec_words,
    is_root,
    launch_environment,
    work_folder,
)
from detcloud.agent.assignment.bind_mounts import MountImpossible, bind_mounts
from detcloud.agent.assignment.data_layer import data_layer_mount, make_owned_folder
from detcloud.agent.assignment.declared_packages import write_request
from detcloud.agent.assignment.environment import container_environment, user_variables
from detcloud.agent.assignment.kernel_cache import kernel_folder, kernel_variables
from detcloud.agent.assignment.unused_settings import container_notices
from detcloud.agent.docker.container import PYTHON, checkpoint_folder, trial_devices, trial_mounts
from detcloud.agent.docker.images import Image, image_request, obtain_image
from detcloud.agent.docker.runtime import container_stages, enter_overlay, image_name
from detcloud.agent.package_cache import DECLARED, declared_layers
from detcloud.agent.processes.runtime import ProcessRuntime
from detcloud.agent.processes.user_access import find_launch_user, give_files
from detcloud.agent.runtime import Launch
from detcloud.shared.trial_directory import DATA_LAYER_PATH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from detcloud.agent.assignment.agent_user import MachineUser
    from detcloud.agent.assignment.assignment import Assignment
    from detcloud.agent.docker.container import ContainerRules

RUNTIME = "apptainer"


class ApptainerRuntime(ProcessRuntime):
    """The runtime that wraps the stages of a launch in commands of Apptainer."""

    def __init__(self, program: str, rules: ContainerRules) -> None:
        """Nothing is started yet. `program` is the path of Apptainer."""
        super().__init__()
        self._program = program
        self._rules = rules
        self._images = SifStore(program, rules.work / "apptainer")

    def prepare(self, assignment: Assignment, is_needed: Callable[[], bool]) -> Launch:
        """Pull the image if needed, prepare the trial's files, and return the launch.

        Write notices about unused settings and the image to the trial's log.

        Raises:
            LaunchImpossible: a mount, a device or the image is impossible or not allowed.
            PullFailed: all attempts to pull the image failed.
            PullStopped: `is_needed` returned False.
            AgentUserUnavailable: the agent user has no access to the trial's folders.
            OSError: a file cannot be written.
        """
        directory = assignment.directory
        name = image_name(assignment)
        user = find_launch_user(assignment)
        notices = container_notices(assignment.config, name, device=assignment.device)
        directory.write_notices([*notices, *_unused_settings(assignment)])
        directory.write_notices(assignment.slot_notices())
        kernels = kernel_folder(assignment, name)
        own = [] if kernels is None else [kernels]
        if assignment.packages:
            own.append(declared_layers(directory.environments, assignment.spec))
        mounts = self._mounts(assignment, own)
        image = self._obtain_image(assignment, name, is_needed)
        environment = self._environment(assignment, image, kernels, user)
        if assignment.packages:
            write_request(assignment, image.digest)
            if assignment.layers is not None:
                with assignment.start_times.measure(PACKAGES):
                    assignment.layers.obtain(DECLARED, own[-1], "")
        _make_places(assignment, mounts)
        work_folder(directory.home).mkdir(exist_ok=True)
        if user is not None:
            give_files(assignment, user)
        elif (folder := checkpoint_folder(assignment)) is not None:
            folder.mkdir(parents=True, exist_ok=True)
        if (mount := data_layer_mount(assignment.config)) is not None:
            make_owned_folder(Path(mount.host_path), directory.owner)
        place = ContainerPlace(
            directory.home,
            directory.code,
            mounts,
            assignment.device,
            drops_privileges=is_root() and user is None,
        )
        words = exec_words(self._program, str(self._images.path_of(name)), place)
        return Launch(
            [
                (stage, [*words, *command])
                for stage, command in container_stages(assignment, directory.home)
            ],
            launch_environment(os.environ, environment),
            str(directory.code),
            str(directory.log),
            assignment.log_bytes_max,
            container={"runtime": RUNTIME, "words": words},
            user=user,
            facts=_facts(image, user),
            # The container does not see the folder of the supervisor's records.
            passed_folder=str(directory.home),
        )

    def _module_command(
        self, directory: Path, launch: Mapping[str, Any], module: str
    ) -> Sequence[str]:
        words = launch["container"]["words"]
        return [*words, *enter_overlay(directory), PYTHON, "-P", "-m", module]

    def _mounts(self, assignment: Assignment, own_folders: Sequence[Path]) -> list[dict[str, Any]]:
        """Return the mounts and devices of a trial.

        The home is a mount: with --contain, the option --home leads to an empty folder.
        """
        mounts = trial_mounts(assignment, self._rules, own_folders)
        devices = [
            {"Source": device["PathOnHost"], "Target": device["PathInContainer"]}
            for device in trial_devices(assignment, self._rules)
        ]
        return [*mounts, *devices]

    def _obtain_image(
        self, assignment: Assignment, name: str, is_needed: Callable[[], bool]
    ) -> Image:
        directory = assignment.directory

        def write_notice(text: str) -> None:
            directory.write_notices([f"[detcloud] {text}"])

        request = image_request(
            name,
            assignment.section("environment"),
            assignment.registry_auth,
            assignment.issue_login,
        )
        with assignment.start_times.measure(IMAGE):
            image = obtain_image(self._images, request, is_needed, write_notice)
        write_notice(f"image {image.name}, {image.digest}")
        return image

    def _environment(
        self,
        assignment: Assignment,
        image: Image,
        kernels: Path | None,
        user: MachineUser | None,
    ) -> dict[str, str]:
        """Return the variables of the container, in addition to those of the image."""
        has_authorities = self._rules.authorities is not None
        base = container_environment(
            assignment.threads, os.environ, has_authorities=has_authorities
        )
        # Apptainer shows all GPUs of the machine, so that numbers of devices are the machine's.
        del base["NVIDIA_VISIBLE_DEVICES"]
        base |= {**user_variables(user), **kernel_variables(kernels)}
        if image.python_path:
            base["PYTHONPATH"] += f":{image.python_path}"
        mount = data_layer_mount(assignment.config)
        place = {DATA_LAYER_PATH: mount.container_path} if mount is not None else {}
        return assignment.environment(base, place)


def _unused_settings(assignment: Assignment) -> list[str]:
    """Return a log line for each configured setting that has no effect with Apptainer."""
    notices = []
    if assignment.section("resources").get("shm_size") is not None:
        notices.append("[detcloud] resources.shm_size is not used: Apptainer sets no limit")
    if any(mount.propagation != "rprivate" for mount in bind_mounts(assignment.config)):
        notices.append("[detcloud] propagation of bind_mounts is not used with Apptainer")
    return notices


def _make_places(assignment: Assignment, mounts: Sequence[Mapping[str, Any]]) -> None:
    """Create the missing places of mounts below the working directory.

    Raise MountImpossible if a link leads out of the working directory.
    """
    code = assignment.directory.code
    for mount in mounts:
        target = Path(mount["Target"])
        if code not in target.parents:
            continue
        if not target.resolve().is_relative_to(code.resolve()):
            raise MountImpossible(
                f"bind mount: container_path {target} leads out of the working directory by a "
                "link; choose another"
            )
        if Path(mount["Source"]).is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()


def _facts(image: Image, user: MachineUser | None) -> dict[str, str]:
    """Return the fields of the trial's `environment` record about the image and the agent user."""
    return {
        "image": image.name,
        "image_digest": image.digest,
        **({} if user is None else {"agent_user": user.label}),
        **({"image_pull_seconds": image.pull_seconds} if image.pull_seconds else {}),
    }
