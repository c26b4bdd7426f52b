"""Apptainer for the tests: the installed program, and an image that needs no registry."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from tests.emulators.docker_engine import root_folder
from tests.emulators.server import require_program

# Folders and files that Apptainer adds to images that it pulls.
FOLDERS = ("dev", "proc", "sys", "root", "var/tmp")
FILES = ("etc/passwd", "etc/group", "etc/hosts", "etc/resolv.conf")


@dataclass(frozen=True)
class Apptainer:
    """The program, and the folder of an image."""

    program: Path
    image: Path


@contextmanager
def apptainer_program() -> Iterator[Apptainer]:
    """Yield Apptainer, with an image for the mounts of `machine_mounts`.

    Skip the test without Apptainer. DETCLOUD_APPTAINER names a program outside the PATH.
    """
    places = [Path(place) for place in [os.environ.get("DETCLOUD_APPTAINER", "")] if place]
    program = require_program("apptainer", *places, remedy="`apt-get install apptainer`")
    with tempfile.TemporaryDirectory(prefix="ap") as folder:
        image = Path(folder, "image")
        with tarfile.open(fileobj=BytesIO(root_folder())) as archive:
            archive.extractall(image, filter="tar")
        for name in FOLDERS:
            (image / name).mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (image / name).touch()
        built = Path(folder, "built")
        build: list[str | Path] = [program, "build", "--sandbox", built, image]
        subprocess.run(build, check=True, capture_output=True)
        path = f"{Path(sys.prefix) / 'bin'}:/usr/local/bin:/usr/bin:/bin"
        script = built / ".singularity.d/env/10-docker2singularity.sh"
        script.write_text(f"#!/bin/sh\nexport PATH={path}\n")
        script.chmod(0o755)
        yield Apptainer(program, built)
