"""A container engine for the tests: dockerd, by default without a network, with images that need no
registry.

The image has only folders: a trial's container mounts the programs and the Python of this machine.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detcloud.agent.docker.engine import EngineClient, EngineUnavailable
from tests.emulators.server import missing, require_program, serving

IMAGE = "localhost/machine:1"
# Links from the root folder into /usr, as far as this machine has them.
LINKS = ("bin", "lib", "lib64", "sbin")
# A network would change the network of this machine.
NO_NETWORK = (
    "--bridge=none",
    "--iptables=false",
    "--ip6tables=false",
    "--ip-forward=false",
    "--ip-masq=false",
)


@dataclass(frozen=True)
class DockerEngine:
    """An engine with the socket `socket`."""

    socket: Path

    @property
    def api(self) -> EngineClient:
        return EngineClient(str(self.socket))

    def docker(self, *arguments: str, content: bytes = b"") -> str:
        """Run a docker command and return the output. Fail the test if the command fails."""
        command = [str(require_program("docker")), "-H", f"unix://{self.socket}", *arguments]
        # The builder that needs no plugin.
        environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
        done = subprocess.run(command, input=content, capture_output=True, env=environment)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()


@contextmanager
def docker_engine(
    inside: Sequence[str] = (),
    flags: Sequence[str] = NO_NETWORK,
    environment: Mapping[str, str] | None = None,
) -> Iterator[DockerEngine]:
    """Run an engine with IMAGE. The block's end stops the engine and all containers.

    `inside` is a command prefix that runs the engine in a separate network. `environment` has more
    variables of the engine. Skip the test if dockerd is missing.
    """
    remedy = "`apt-get install docker.io iptables` installs it"
    program = require_program("dockerd", Path("/usr/sbin/dockerd"), remedy=remedy)
    if os.getuid() != 0:
        missing("dockerd", "dockerd runs as root only")
    # The socket needs a short path.
    with tempfile.TemporaryDirectory(prefix="dk") as folder, unmounting(folder):
        socket = Path(folder, "docker.sock")
        engine = DockerEngine(socket)
        places = ["--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"]
        places += ["--pidfile", f"{folder}/dockerd.pid", "-H", f"unix://{socket}"]

        def is_ready() -> None:
            try:
                engine.api.version()
            except EngineUnavailable as error:
                raise OSError(str(error)) from error

        command: list[str | Path] = [*inside, program, *places, *flags]
        with serving(command, is_ready, Path(folder, "log"), environment):
            path = f"{Path(sys.prefix) / 'bin'}:/usr/local/bin:/usr/bin:/bin"
            change = ("--change", f"ENV PATH={path}")
            engine.docker("import", *change, "-", IMAGE, content=root_folder())
            try:
                yield engine
            finally:
                for container in engine.api.list_containers("ai.detcloud.agent"):
                    engine.api.remove_container(container["Id"])


@contextmanager
def unmounting(folder: str) -> Iterator[None]:
    """Remove the mounts that an engine leaves in its folder."""
    try:
        yield
    finally:
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for place in sorted(
            filter(lambda mount: mount.startswith(f"{folder}/"), mounts), reverse=True
        ):
            subprocess.run(["umount", "--lazy", place], check=True)


def machine_mounts() -> list[dict[str, Any]]:
    """Return bind mounts with the programs, the Python and the test environment of this machine."""
    folders = dict.fromkeys(["/usr", sys.base_prefix, sys.prefix])
    own = [place for place in folders if place == "/usr" or not place.startswith("/usr/")]
    return [{"host_path": place, "container_path": place, "read_only": True} for place in own]


def shell_files() -> dict[str, bytes]:
    """Return the contents of a shell and of its libraries by path."""
    output = subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True, check=True).stdout
    libraries = [word for word in output.split() if word.startswith("/")]
    paths = ["/bin/sh", *libraries]
    # The archive has these folders as links, so that the files need their real paths.
    places = {path: Path(path).parent.resolve() / Path(path).name for path in paths}
    return {str(place)[1:]: Path(path).read_bytes() for path, place in places.items()}


def root_folder(files: dict[str, bytes] | None = None) -> bytes:
    """Return a root file system with `files` as a tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, mode in (("tmp", 0o1777), ("etc", 0o755), ("usr", 0o755)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            archive.addfile(entry)
        for name in LINKS:
            if Path("/", name).is_symlink():
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = tarfile.SYMTYPE, str(Path("/", name).readlink())
                archive.addfile(entry)
        for name, content in (files or {}).items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
