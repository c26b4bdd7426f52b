"""The images of Apptainer on this machine: files of the format SIF in a folder of the agent."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcloud.agent.apptainer.program import is_root, program_environment
from detcloud.agent.docker.engine import MESSAGE_CHARACTERS_MAX, EngineError
from detcloud.shared.files import read_json_object, sha256_of, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

EVENT_SECONDS = 0.5
READ_SECONDS_MAX = 120.0
SCHEMES = ("docker://", "oras://", "library://", "https://")


class SifStore:
    """The folder of images. The methods have the meaning of those of EngineClient.

    An image is a file NAME.sif with a record NAME.json, where NAME is a digest of the image's name.
    """

    def __init__(self, program: str, folder: Path) -> None:
        """Nothing is created yet. `program` is the path of Apptainer."""
        self._program = program
        self._folder = folder

    def path_of(self, name: str) -> Path:
        """Return the file of an image: `name` if absolute, else a file in the folder."""
        if name.startswith("/"):
            return Path(name)
        return self._folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.sif"

    def find_image(self, name: str) -> dict[str, Any] | None:
        """Return a description with `Id` and `Config`, or None if the machine lacks the image.

        The id is the digest of the file. For a file or folder of the user, the id is the path.
        """
        path = self.path_of(name)
        if not path.exists():
            return None
        if name.startswith("/"):
            return {"Id": name}
        record = read_json_object(path.with_suffix(".json"))
        if record is None or record.get("name") != name:
            return None
        return {"Id": str(record["digest"]), "Config": {"Env": list(record["variables"])}}

    def pull_image(
        self,
        name: str,
        login: Mapping[str, str] | None,
        on_event: Callable[[Mapping[str, Any]], None],
    ) -> None:
        """Pull an image from a registry into a file, and replace an earlier file.

        The password is a variable of Apptainer's process. Raise EngineError with status 400 for a
        missing file of the user or a login by token, and 500 if the pull fails. An exception of
        `on_event` stops the pull. Other pulls of the same image wait.
        """
        path = self.path_of(name)
        if name.startswith("/"):
            raise EngineError(400, f"the file {name} does not exist on this machine")
        self._folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        with self._hold_lock(path):
            new = path.with_suffix(".new")
            self._run_pull(name, new, self._pull_environment(login), on_event)
            new.chmod(0o644)
            record = {
                "name": name,
                "digest": f"sha256:{sha256_of(new)}",
                "variables": self._read_variables(new),
            }
            path.with_suffix(".json").unlink(missing_ok=True)
            new.replace(path)
            write_atomically(path.with_suffix(".json"), record)

    @contextlib.contextmanager
    def _hold_lock(self, path: Path) -> Iterator[None]:
        with path.with_suffix(".lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _pull_environment(self, login: Mapping[str, str] | None) -> dict[str, str]:
        environment = program_environment(os.environ)
        for name, folder in (("APPTAINER_CACHEDIR", "cache"), ("APPTAINER_TMPDIR", "tmp")):
            if name not in environment:
                (self._folder / folder).mkdir(mode=0o700, exist_ok=True)
                environment[name] = str(self._folder / folder)
        if login is not None:
            if not login.get("username") or not login.get("password"):
                raise EngineError(
                    400, "Apptainer needs a login with `username` and `password`, not a token"
                )
            environment["APPTAINER_DOCKER_USERNAME"] = login["username"]
            environment["APPTAINER_DOCKER_PASSWORD"] = login["password"]
        return environment

    def _run_pull(
        self,
        name: str,
        target: Path,
        environment: Mapping[str, str],
        on_event: Callable[[Mapping[str, Any]], None],
    ) -> None:
        source = name if name.startswith(SCHEMES) else f"docker://{name}"
        command = [self._program, "pull", "--force", str(target), source]
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
                start_new_session=True,
            )
            try:
                while True:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(EVENT_SECONDS)
                        break
                    on_event({})
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            if process.returncode:
                output.seek(0)
                text = output.read().decode(errors="replace").strip()
                raise EngineError(500, text[-MESSAGE_CHARACTERS_MAX:])

    def _read_variables(self, image: Path) -> list[str]:
        """Return PYTHONPATH of the image as NAME=VALUE. Empty if unset, or without a shell."""
        words = [self._program, "--silent", "exec", "--no-eval", "--cleanenv", "--contain"]
        words += ["--no-privs"] if is_root() else []
        show = 'printf "%s" "$PYTHONPATH"'
        done = subprocess.run(
            [*words, str(image), "/bin/sh", "-c", show],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=program_environment(os.environ),
            cwd="/",
            timeout=READ_SECONDS_MAX,
            check=False,
        )
        # An image without a shell of its own may get a shell by a mount of the trial.
        return [f"PYTHONPATH={done.stdout}"] if done.returncode == 0 and done.stdout else []
