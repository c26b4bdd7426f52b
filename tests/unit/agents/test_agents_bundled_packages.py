"""The packages for trials in the archive of the agent's code."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from control_plane.agents.bundled_packages import BUNDLES, bundle_files
from tests.conftest import require
from tests.unit.images.test_images_dockerfiles import (
    OF_TRIALS,
    distributions_of,
    others_imported,
    requirements_of,
)

# The packages of the default image, and packages that users of the store add to environment.pip.
OF_THE_IMAGE = {"torch", "numpy"}
OF_USERS = {"azure"}
# The package that the first connection of SSH installs.
ON_DEMAND = {"asyncssh"}


def install(folder: Path, name: str, files: dict[str, str]) -> None:
    """Write a distribution with its record into `folder`."""
    place = f"{name.replace('-', '_')}-1.dist-info"
    record = "".join(f"{file},,\n" for file in (*files, "../../bin/program.py"))
    info = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"
    files = {**files, f"{place}/METADATA": info, f"{place}/RECORD": record}
    for place, text in files.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def site_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of installed packages, with all but one of the bundle `s3`."""
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    for name in ("jmespath", "python-dateutil", "six", "urllib3"):
        install(tmp_path, name, {f"{name}.py": name})
    return tmp_path


def test_bundle_has_code_data_and_licences(site_packages: Path) -> None:
    files = {
        "botocore/__init__.py": "code",
        "botocore/cacert.pem": "authorities",
        "botocore/data/endpoints.json": "all services",
        "botocore/data/s3/1/service-2.json.gz": "S3",
        "botocore/data/ec2/1/service-2.json.gz": "EC2",
        "botocore/fast.cpython-313-x86_64-linux-gnu.so": "for another Python",
        "botocore/tests/test_x.py": "a test",
        "botocore-1.dist-info/licenses/LICENSE.txt": "the licence",
    }
    install(site_packages, "botocore", files)
    names = ("jmespath", "python-dateutil", "six", "urllib3")
    assert dict(bundle_files()) == {
        PurePosixPath("s3") / place: text.encode()
        for place, text in {
            ".licenses/botocore/LICENSE.txt": "the licence",
            "botocore/__init__.py": "code",
            "botocore/cacert.pem": "authorities",
            "botocore/data/endpoints.json": "all services",
            "botocore/data/s3/1/service-2.json.gz": "S3",
            **{f"{name}.py": name for name in names},
        }.items()
    }


def test_bundle_without_one_of_its_packages_is_skipped(site_packages: Path) -> None:
    assert list(bundle_files()) == []


def test_default_image_and_bundles_have_all_packages_that_the_harness_imports() -> None:
    require("boto3")
    bundled = {name for bundle in BUNDLES for name in bundle.distributions}
    needed = others_imported(OF_TRIALS) - OF_THE_IMAGE - OF_USERS - ON_DEMAND
    assert needed >= {"botocore", "google", "pynvml"}, "or nothing was read"
    assert not {package for package in needed if bundled.isdisjoint(distributions_of(package))}


def test_bundles_have_the_requirements_of_their_packages() -> None:
    require("google.cloud.storage")
    # Google's optional traces, and compiled packages that nothing imports at run time.
    unused = {"opentelemetry-api", "proto-plus", "cryptography", "pyasn1-modules"}
    for bundle in BUNDLES:
        needed = {one for name in bundle.distributions for one in requirements_of(name)}
        assert {name.replace("_", "-") for name in needed} - unused <= set(bundle.distributions)
