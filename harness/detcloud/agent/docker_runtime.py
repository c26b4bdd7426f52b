"""Runs trials as containers of the machine's Docker engine.

In the container the supervisor is the first process, as it stands beside a trial without one: it
writes the log and the exit into files of the allocation, so that neither depends on an agent or on
the engine's own log. What a container can write is not trusted: that it has ended is the engine's
word, and the files only tell how.
"""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from detcloud.agent.assignment import LaunchImpossible
from detcloud.agent.container import (
    LABEL,
    PYTHON,
    RECORDS,
    checkpoint_folder,
    container_body,
    work_label,
)
from detcloud.agent.container_launch import ASKED, KILL, ContainerLaunch
from detcloud.agent.directory import write_atomically
from detcloud.agent.docker_api import EngineAway, EngineRefused
from detcloud.agent.environment import container_environment
from detcloud.agent.images import image_asked
from detcloud.agent.pulled_images import PulledImages
from detcloud.agent.runtime import Launch, Phase, Status
from detcloud.agent.unused_settings import container_notices
from detcloud.storage.directory import STAGING, TENSORBOARD

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from detcloud.agent.assignment import Assignment
    from detcloud.agent.container import ContainerRules
    from detcloud.agent.docker_api import Engine

# Engines kill 10 s after they asked, unless told otherwise.
UNASKED_GRACE_SECONDS = 8.0
SWEEP_SECONDS = 60.0
SWEEP_TROUBLE_SECONDS = 5.0
LIMITS = {
    "memlock": resource.RLIMIT_MEMLOCK,
    "stack": resource.RLIMIT_STACK,
    "nofile": resource.RLIMIT_NOFILE,
}
CAP_SYS_RESOURCE = 24


class DockerRuntime:
    """Containers that carry the label of this agent's work directory, and no others."""

    def __init__(self, engine: Engine, rules: ContainerRules, say: Callable[[str], None]) -> None:
        self._engine = engine
        self._rules = rules
        self._say = say
        self._images = PulledImages(engine, rules.work / "images.json", say)
        self._launches: dict[Path, ContainerLaunch] = {}
        self._changing = threading.Lock()
        self._sweep = threading.Event()
        self._closed = False

    @property
    def owner(self) -> tuple[int, int] | None:
        """The containers' user, unless that is the agent's own."""
        owner = self._rules.user, self._rules.group
        return None if owner == (os.getuid(), os.getgid()) else owner

    def adopt(self, directories: Sequence[Path]) -> None:
        """Look after the containers of these launches; all other ones of ours are removed."""
        for directory in directories:
            if (directory / ASKED).exists():
                self._begin(directory)
        threading.Thread(target=self._run_sweeps, name="container sweep", daemon=True).start()

    def prepare(self, assignment: Assignment, wanted: Callable[[], bool]) -> Launch:
        """Say what is not used, have the image here, and work out the container."""
        directory = assignment.directory
        name = _image_name(assignment)
        notices = container_notices(assignment.config, name, cuda=assignment.cuda)
        directory.write_notices(notices)
        body = container_body(assignment, self._rules, limit_of)
        asked = image_asked(name, assignment.section("environment"), assignment.registry_auth)
        image = self._images.obtained(
            asked, wanted, lambda text: directory.write_notices([f"[detcloud] {text}"])
        )
        directory.write_notices([f"[detcloud] image {image.name}, {image.digest}"])
        base = container_environment(assignment.threads)
        if image.python_path:
            base["PYTHONPATH"] += f":{image.python_path}"
        environment = assignment.environment(base)
        variables = [f"{name}={value}" for name, value in environment.items()]
        directory.hand_over()
        self._open_checkpoints(assignment)
        return Launch(
            assignment.stages(PYTHON, directory.agent / RECORDS),
            environment,
            str(directory.code),
            str(directory.log),
            assignment.log_bytes_max,
            container={**body, "Image": image.id, "Env": variables},
            facts={"image": image.name, "image_digest": image.digest},
        )

    def start(self, directory: Path, launch: Launch) -> None:
        """Write down what is wanted; a thread of the launch's own asks the engine for it."""
        if (directory / ASKED).exists():
            raise RuntimeError(f"{directory} has a container already")
        assert launch.container is not None
        self._write_records(directory, launch)
        identity = os.urandom(8).hex()
        labels = {**launch.container["Labels"], f"{LABEL}launch": identity}
        asked = {
            "launch": identity,
            "log": launch.log,
            "has_hook": launch.stages[0][0] == "hook",
            "body": {**launch.container, "Labels": labels},
        }
        write_atomically(directory / ASKED, asked)
        self._begin(directory)

    def poll(self, directory: Path) -> Status:
        """What the launch's thread saw last."""
        launch = self._launches.get(directory)
        return launch.poll() if launch is not None else Status(Phase.ABSENT)

    def kill(self, directory: Path, grace_ms: int) -> None:
        """Write down that the end is wanted; the launch's thread sees to it."""
        write_atomically(directory / KILL, {"grace_ms": grace_ms})
        launch = self._launches.get(directory)
        if launch is not None:
            launch.wake()

    def remove(self, directory: Path) -> None:
        """Forget the launch; what nobody looks after is removed, now or when the engine answers."""
        with self._changing:
            launch = self._launches.pop(directory, None)
        if launch is not None:
            launch.close()
        self._sweep.set()

    def tend(self) -> None:
        """Nothing is kept beside the containers."""

    def close(self) -> None:
        """Let the threads end; the containers go on."""
        self._closed = True
        self._sweep.set()
        for launch in list(self._launches.values()):
            launch.close()

    def _open_checkpoints(self, assignment: Assignment) -> None:
        """Make the machine's folder of checkpoints, and let the trial write its own into one that
        is the agent's; any other is for its owner to open to the containers' user.
        """
        folder = checkpoint_folder(assignment)
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        if self.owner is None or os.getuid() != 0 or folder.stat().st_uid != 0:
            return
        folder.chmod(folder.stat().st_mode | 0o011)
        experiment, trial = (int(assignment.spec[n]) for n in ("experiment_id", "trial_id"))
        places = (f"{experiment}", f"{experiment}/{trial}")
        events = (TENSORBOARD, *(f"{TENSORBOARD}/{place}" for place in places))
        for own in (folder / name for name in (STAGING, *places, *events)):
            own.mkdir(exist_ok=True)
            os.chown(own, *self.owner, follow_symlinks=False)

    def _write_records(self, directory: Path, launch: Launch) -> None:
        """The supervisor's folder, in the hands of the container's user."""
        records = directory / RECORDS
        records.mkdir(mode=0o700, exist_ok=True)
        told = {
            "stages": launch.stages,
            # The engine gives them to the container.
            "environment": None,
            "cwd": launch.cwd,
            "log": launch.log,
            "log_bytes_max": launch.log_bytes_max,
            "unasked_grace_seconds": UNASKED_GRACE_SECONDS,
        }
        write_atomically(records / "launch.json", told, owner=self.owner)
        if self.owner is not None:
            os.chown(records, *self.owner)

    def _begin(self, directory: Path) -> None:
        launch = ContainerLaunch(self._engine, directory, self._say)
        with self._changing:
            self._launches[directory] = launch
        launch.begin()

    def _run_sweeps(self) -> None:
        while not self._closed:
            self._sweep.clear()
            try:
                self._swept()
                pause = SWEEP_SECONDS
            except (EngineAway, EngineRefused):
                pause = SWEEP_TROUBLE_SECONDS
            self._sweep.wait(pause)

    def _swept(self) -> None:
        """Remove the containers of ours that nobody looks after."""
        # Whatever is in this list was asked for by a launch that is known by now, or not at all.
        for found in self._engine.containers(work_label(self._rules.work)):
            directory = Path((found.get("Labels") or {}).get(f"{LABEL}directory", ""))
            if directory not in self._launches and not self._closed:
                self._engine.remove(str(found["Id"]))


def limit_of(name: str) -> int:
    """How much of an ulimit may be given: our own limit, for who may not exceed it; -1: any."""
    return -1 if _may_exceed() else resource.getrlimit(LIMITS[name])[1]


def _may_exceed() -> bool:
    """Whether processes of root here may raise their limits, the engine's among them."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return bool(int(fields.get("CapBnd", "0").strip(), 16) >> CAP_SYS_RESOURCE & 1)


def _image_name(assignment: Assignment) -> str:
    images = assignment.spec.get("image")
    name = images.get("cuda" if assignment.cuda else "cpu") if isinstance(images, dict) else images
    if not name:
        raise LaunchImpossible("no container image is named for this kind of device")
    return str(name)
