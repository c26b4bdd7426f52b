"""A container engine for the tests: Podman's API service, with the image of `docker_engine`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from detcloud.agent.docker.engine import EngineUnavailable
from tests.emulators.docker_engine import IMAGE, DockerEngine, root_folder, unmounting
from tests.emulators.server import missing, require_program, serving

# The defaults of Podman need a limit that this process may not set, and a newer mode of cgroups.
CONFIGURATION = """
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


@contextmanager
def podman_engine() -> Iterator[DockerEngine]:
    """Run Podman's service with IMAGE. The block's end stops the service and all containers.

    Skip the test if Podman or runc is missing, or if this process is not root.
    """
    remedy = "`apt-get install podman runc` installs it"
    podman = require_program("podman", remedy=remedy)
    runtime = require_program("runc", Path("/usr/sbin/runc"), remedy=remedy)
    if os.getuid() != 0:
        missing("podman", "these tests run Podman as root only")
    with tempfile.TemporaryDirectory(prefix="pd") as folder, unmounting(folder):
        configuration = Path(folder, "containers.conf")
        configuration.write_text(CONFIGURATION)
        environment = {"CONTAINERS_CONF": str(configuration)}
        places = ["--root", f"{folder}/data", "--runroot", f"{folder}/run"]
        command: list[str | Path] = [
            podman,
            *places,
            "--storage-driver",
            "overlay",
            "--runtime",
            runtime,
        ]
        socket = Path(folder, "podman.sock")
        engine = DockerEngine(socket)

        def is_ready() -> None:
            try:
                engine.api.version()
            except EngineUnavailable as error:
                raise OSError(str(error)) from error

        path = f"{Path(sys.prefix) / 'bin'}:/usr/local/bin:/usr/bin:/bin"
        subprocess.run(
            [*command, "import", "--change", f"ENV PATH={path}", "-", IMAGE],
            input=root_folder(),
            env={**os.environ, **environment},
            capture_output=True,
            check=True,
        )
        service = [*command, "system", "service", "-t", "0", f"unix://{socket}"]
        with serving(service, is_ready, Path(folder, "log"), environment):
            try:
                yield engine
            finally:
                for container in engine.api.list_containers("ai.detcloud.agent"):
                    engine.api.remove_container(container["Id"])
