"""The place, the variables and the command lines of the program `apptainer`."""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PROGRAM = "apptainer"
VERSION_SECONDS_MAX = 30.0
# The first version with --no-eval. Earlier versions run the values of variables in a shell.
VERSION_OLDEST = (1, 1)
CONTAINER_PREFIX = "APPTAINERENV_"
# Variables of the agent that would set variables of containers, or that hold a login.
WITHHELD = (CONTAINER_PREFIX, "SINGULARITYENV_", "APPTAINER_DOCKER_", "SINGULARITY_DOCKER_")
FOLDER_VARIABLE = "DETCLOUD_TRIAL_DIR"
GPU_OPTIONS = {"cuda": "--nv", "rocm": "--rocm"}


class ApptainerUnusable(Exception):
    """The agent cannot run trials with Apptainer. The message has a remedy."""


@dataclass(frozen=True, slots=True)
class ContainerPlace:
    """The folders and devices of a container."""

    home: Path
    """The trial's home, which is mounted at the same path."""
    code: Path
    """The working directory."""
    mounts: Sequence[Mapping[str, Any]]
    """The mounts, in the form of the engine's API: `Source`, `Target` and `ReadOnly`."""
    device: str
    """The type of the trial's slots: `cuda`, `rocm`, `mps` or `cpu`."""
    drops_privileges: bool
    """Whether the container belongs to root, which then gets no privileges."""


def find_program() -> tuple[str, str]:
    """Return the path and the version of Apptainer.

    Raise ApptainerUnusable if the program is missing, fails or is too old.
    """
    path = shutil.which(PROGRAM)
    if path is None:
        raise ApptainerUnusable("apptainer is not on the PATH; install Apptainer 1.1 or later")
    try:
        done = subprocess.run(
            [path, "version"],
            capture_output=True,
            text=True,
            check=True,
            timeout=VERSION_SECONDS_MAX,
        )
    except (OSError, subprocess.SubprocessError) as error:
        output = str(getattr(error, "stderr", None) or error).strip()
        raise ApptainerUnusable(f"{path} version failed: {output}; repair it") from error
    version = done.stdout.strip()
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if len(numbers) < 2 or numbers < VERSION_OLDEST:
        raise ApptainerUnusable(
            f"{path} has the version {version!r}; install Apptainer 1.1 or later"
        )
    return path, version


def program_environment(agent_environment: Mapping[str, str]) -> dict[str, str]:
    """Return the agent's variables for Apptainer itself, without logins and containers' variables.

    Operators configure Apptainer by variables such as APPTAINER_CACHEDIR.
    """
    return {
        name: value for name, value in agent_environment.items() if not name.startswith(WITHHELD)
    }


def launch_environment(
    agent_environment: Mapping[str, str], container: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of a command that runs a container with the variables `container`.

    The command line shows no value. The home and the trial's folder are also plain variables, by
    which the supervisor and the agent find the launch's processes.
    """
    own = {
        name: value
        for name, value in program_environment(agent_environment).items()
        if name.startswith("APPTAINER_") or name == "PATH"
    }
    plain = {name: container[name] for name in ("HOME", FOLDER_VARIABLE)}
    # Apptainer sets HOME by an option, and warns about a variable.
    passed = {f"{CONTAINER_PREFIX}{k}": v for k, v in container.items() if k != "HOME"}
    return {**own, **plain, **passed}


def exec_words(program: str, image: str, place: ContainerPlace) -> list[str]:
    """Return the words before a command that run the command in a container of the image.

    The container has the network and the process ids of the machine, so that a trial's claims name
    processes that the supervisor can signal.
    """
    # Apptainer drops a container's variable if its own process has a variable of the name.
    words = ["env", "-u", FOLDER_VARIABLE, program, "--silent", "exec"]
    words += ["--no-eval", "--cleanenv", "--contain", "--ipc"]
    words += ["--home", str(place.home), "--workdir", str(work_folder(place.home))]
    words += ["--pwd", str(place.code)]
    if option := GPU_OPTIONS.get(place.device):
        words.append(option)
    if place.drops_privileges:
        words.append("--no-privs")
    for mount in place.mounts:
        words += ["--mount", mount_text(mount)]
    return [*words, image]


def work_folder(home: Path) -> Path:
    """Return the folder for /tmp and /var/tmp of the container."""
    return home / ".apptainer-tmp"


def mount_text(mount: Mapping[str, Any]) -> str:
    """Return a mount as a value of --mount: fields of CSV, quoted where a path has a comma."""
    fields = ["type=bind", f"source={mount['Source']}", f"destination={mount['Target']}"]
    if mount.get("ReadOnly"):
        fields.append("ro")
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()


def is_root() -> bool:
    """Whether this process belongs to root."""
    return os.geteuid() == 0
