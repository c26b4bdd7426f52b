"""A container engine of the tests' own: dockerd, by default without a network, and images that need
no registry.

The image has no more than folders: a trial's container mounts this machine's programs and Python.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detcloud.agent.docker.engine import EngineClient, EngineUnavailable
from tests.emulators.server import missing, require_program, serving

IMAGE = "localhost/machine:1"
# Links of the root folder into /usr, where a machine has them.
LINKS = ("bin", "lib", "lib64", "sbin")
# It would change this machine's network.
NO_NETWORK = (
    "--bridge=none",
    "--iptables=false",
    "--ip6tables=false",
    "--ip-forward=false",
    "--ip-masq=false",
)


@dataclass(frozen=True)
class DockerEngine:
    """An engine that listens on `socket`."""

    socket: Path

    @property
    def api(self) -> EngineClient:
        return EngineClient(str(self.socket))

    def docker(self, *arguments: str, content: bytes = b"") -> str:
        """Run the docker command and return its output."""
        command = [str(require_program("docker")), "-H", f"unix://{self.socket}", *arguments]
        # The builder that needs no plugin.
        environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
        done = subprocess.run(command, input=content, capture_output=True, env=environment)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()


@contextmanager
def docker_engine(
    inside: Sequence[str] = (), flags: Sequence[str] = NO_NETWORK
) -> Iterator[DockerEngine]:
    """An engine with IMAGE, which ends with the block and all its containers with it; `inside` is
    a command that runs it in a network of its own.
    """
    remedy = "`apt-get install docker.io iptables` installs it"
    program = require_program("dockerd", Path("/usr/sbin/dockerd"), remedy=remedy)
    if os.getuid() != 0:
        missing("dockerd", "dockerd runs as root only")
    # The path of a socket must be short.
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

        with serving([*inside, program, *places, *flags], is_ready, Path(folder, "log")):
            path = f"{Path(sys.prefix) / 'bin'}:/usr/local/bin:/usr/bin:/bin"
            change = ("--change", f"ENV PATH={path}")
            engine.docker("import", *change, "-", IMAGE, content=root_folder())
            try:
                yield engine
            finally:
                for found in engine.api.list_containers("ai.detcloud.agent"):
                    engine.api.remove_container(found["Id"])


@contextmanager
def unmounting(folder: str) -> Iterator[None]:
    """Remove the mounts that an engine leaves in its folder when it ends."""
    try:
        yield
    finally:
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for place in sorted(filter(lambda one: one.startswith(f"{folder}/"), mounts), reverse=True):
            subprocess.run(["umount", "--lazy", place], check=True)


def machine_mounts() -> list[dict[str, Any]]:
    """Bind mounts with this machine's programs, its Python and the environment of the tests."""
    folders = dict.fromkeys(["/usr", sys.base_prefix, sys.prefix])
    own = [one for one in folders if one == "/usr" or not one.startswith("/usr/")]
    return [{"host_path": one, "container_path": one, "read_only": True} for one in own]


def shell_files() -> dict[str, bytes]:
    """A shell and the libraries that it needs, at their places."""
    found = subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True, check=True).stdout
    libraries = [word for word in found.split() if word.startswith("/")]
    paths = ["/bin/sh", *libraries]
    # Through the links that root_folder has: a real path is one of a folder.
    places = {one: Path(one).parent.resolve() / Path(one).name for one in paths}
    return {str(place)[1:]: Path(one).read_bytes() for one, place in places.items()}


def root_folder(files: dict[str, bytes] | None = None) -> bytes:
    """A root file system as a tar archive, with these programs."""
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
