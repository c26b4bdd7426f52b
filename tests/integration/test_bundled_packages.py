"""Checkpoints of a trial whose Python has none of the packages for its store.

The trial's Python sees its standard library and the agent's code, as in a container of an image
that has torch and nothing for the stores.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from control_plane.agents.agent_code import agent_code
from tests.conftest import require
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.seaweedfs import SECRET_KEY, SeaweedFs
from tests.patience import PROCESS_SECONDS_MAX
from tests.unit.core.trial_files import make_trial, reports

TRIAL = """
import sys, detcloud.core
for name in ("boto3", "botocore", "google.cloud", "cryptography", "urllib3", "requests"):
    assert name not in sys.modules
with detcloud.core.init() as context:
    with context.checkpoint.store_path({"steps_completed": 5}) as (path, uuid):
        (path / "weights.bin").write_bytes(b"weights" * (1 << 17))
    with context.checkpoint.restore_path(uuid) as path:
        assert (path / "weights.bin").read_bytes() == b"weights" * (1 << 17)
import subprocess
run = [sys.executable, "-c", "import google" if "google" in sys.modules else "import botocore"]
assert subprocess.run(run, stderr=subprocess.DEVNULL).returncode == 1
print("read again")
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that an agent mounts into containers, from the archive of its code."""
    folder = tmp_path_factory.mktemp("agent")
    with tarfile.open(fileobj=io.BytesIO(agent_code().content)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without any installed package."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python"


def run_trial(
    python: Path,
    packages: Path,
    root: Path,
    storage: Mapping[str, Any],
    variables: Mapping[str, str],
) -> Path:
    """Run a trial that stores a checkpoint and reads the checkpoint again; return its folder."""
    trial = make_trial(root, storage=storage)
    done = subprocess.run(
        [python, "-P", "-c", TRIAL],
        env={
            "PATH": os.defpath,
            "PYTHONPATH": str(packages),
            "DETCLOUD_TRIAL_DIR": str(trial),
            "HOME": str(root),
            **variables,
        },
        cwd=root,
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("read again\n")
    assert "Warning" not in done.stderr
    return trial


def test_trial_without_boto3_stores_checkpoint_in_s3(
    s3: SeaweedFs, bare_python: Path, packages: Path, tmp_path: Path
) -> None:
    place = s3.place()
    storage = {
        "type": "s3",
        "bucket": place.name,
        "endpoint_url": place.endpoint_url,
        "access_key": place.access_key,
        "secret_key": SECRET_KEY,
    }
    trial = run_trial(bare_python, packages, tmp_path, storage, {"AWS_DEFAULT_REGION": "us-east-1"})
    assert len(reports(trial, "checkpoint")) == 1


def test_trial_without_googles_packages_stores_checkpoint_in_gcs(
    gcs: FakeGcs, bare_python: Path, packages: Path, tmp_path: Path
) -> None:
    require("google.cloud.storage")
    storage = {"type": "gcs", "bucket": gcs.new_bucket()}
    trial = run_trial(bare_python, packages, tmp_path, storage, {"STORAGE_EMULATOR_HOST": gcs.url})
    assert len(reports(trial, "checkpoint")) == 1


def run_python(python: Path, packages: Path, code: str, **variables: str) -> str:
    """Run code that can import detcloud from the agent's folder; return the printed text."""
    done = subprocess.run(
        [python, "-P", "-c", code],
        env={"PATH": os.defpath, "PYTHONPATH": str(packages), **variables},
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def site_packages(python: Path, packages: Path) -> Path:
    code = "import site; print(site.getsitepackages()[0])"
    return Path(run_python(python, packages, code).strip())


def test_package_of_the_image_is_used_before_the_bundled_package(
    packages: Path, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    python = tmp_path / "bin" / "python"
    own = site_packages(python, packages) / "botocore"
    own.mkdir()
    (own / "__init__.py").write_text("")
    code = (
        "from detcloud.shared.bundled_packages import offer_bundle; import sys\n"
        "before = list(sys.path); offered = offer_bundle('s3', 'botocore')\n"
        "import botocore; print(botocore.__file__, offered, sys.path == before)"
    )
    assert run_python(python, packages, code).split() == [f"{own}/__init__.py", "False", "True"]


def test_bundled_packages_join_the_namespace_of_an_installed_package(
    packages: Path, tmp_path: Path
) -> None:
    require("google.cloud.storage")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    python = tmp_path / "bin" / "python"
    own = site_packages(python, packages) / "google" / "generativeai"
    own.mkdir(parents=True)
    (own / "__init__.py").write_text("")
    code = (
        "import google.generativeai, json, sys\n"
        "from detcloud.shared.gcs import GcsBucket\n"
        "bucket = GcsBucket('b')\n"
        "import google.cloud.storage\n"
        "print(json.dumps([google.generativeai.__file__, google.cloud.storage.__file__]))"
    )
    host = {"STORAGE_EMULATOR_HOST": "http://127.0.0.1:9"}
    mine, bundled = json.loads(run_python(python, packages, code, **host))
    assert mine == f"{own}/__init__.py"
    assert bundled.startswith(f"{packages}/detcloud/_packages/gcs/")


def test_key_of_a_service_account_needs_cryptography(
    bare_python: Path, packages: Path, tmp_path: Path
) -> None:
    require("google.cloud.storage")
    key = tmp_path / "key.json"
    fields = {"type": "service_account", "client_email": "a@b", "token_uri": "https://t"}
    key.write_text(json.dumps({**fields, "private_key": "x", "private_key_id": "y"}))
    code = (
        "from detcloud.shared.gcs import GcsBucket\n"
        "from detcloud.shared.bucket_errors import BucketError\n"
        "try: GcsBucket('b')\n"
        "except BucketError as error: print(error)"
    )
    text = run_python(bare_python, packages, code, GOOGLE_APPLICATION_CREDENTIALS=str(key))
    assert "needs the package cryptography" in text
    assert "environment.pip" in text
