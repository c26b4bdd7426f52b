"""Shared servers of all tests, and helpers that require optional packages."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

import pytest
from hypothesis import settings

from detcloud.shared import upload_parts
from tests.left_processes import no_process_left

if TYPE_CHECKING:
    from tests.emulators.azurite import Azurite
    from tests.emulators.fake_gcs import FakeGcs
    from tests.emulators.firestore import Firestore
    from tests.emulators.ministack import Ministack
    from tests.emulators.postgresql import Postgresql
    from tests.emulators.seaweedfs import SeaweedFs

ROOT = Path(__file__).resolve().parents[1]

# Fixed examples without deadlines: a green gate stays green on the same tree.
# `--hypothesis-profile=default` draws new examples.
settings.register_profile("gate", derandomize=True, deadline=None)
settings.load_profile("gate")


def require(name: str) -> ModuleType:
    """Import and return a package; skip the test if the package is missing.

    Fail the test instead if DETCLOUD_REQUIRE, a comma-separated list, names the package. So a
    failed installation skips no test on a complete machine.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        miss(name, str(error))


def require_installed(name: str) -> None:
    """Skip or fail the test like `require`, without the slow import of the package."""
    if importlib.util.find_spec(name) is None:
        miss(name, "no module of this name")


def miss(name: str, why: str) -> NoReturn:
    """Skip the test without the package, or fail the test if DETCLOUD_REQUIRE names the package.

    `why` completes the message.
    """
    reason = f"{name} is not installed ({why}); `make setup` installs it"
    if name in os.environ.get("DETCLOUD_REQUIRE", "").split(","):
        pytest.fail(f"{reason}, and DETCLOUD_REQUIRE names it", pytrace=False)
    pytest.skip(reason, allow_module_level=True)


def pytest_configure() -> None:
    """Restore SIGINT in tests that run in the background of a shell. Called by pytest.

    A script's shell starts background processes with SIGINT ignored, and children inherit the
    setting: the commands that a test interrupts would go on.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a test module that imports a missing third-party package. Called by pytest.

    With DETCLOUD_REQUIRE in the environment, the import error stays an error.
    """
    report = yield
    call = getattr(report, "call", None)
    missing = None if call is None or not call.excinfo else _missing_package(call.excinfo.value)
    if missing is not None and not os.environ.get("DETCLOUD_REQUIRE"):
        report.outcome = "skipped"
        reason = f"Skipped: {missing} is not installed; `make setup` installs it"
        report.longrepr = (str(collector.path), 0, reason)
    return report


def _missing_package(error: BaseException | None) -> str | None:
    """Return the missing third-party package behind `error`, or None."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name:
            package = error.name.partition(".")[0]
            return None if (ROOT / package).exists() or package == "detcloud" else error.name
        error = getattr(error, "cause", None) or error.__cause__
    return None


# Open descriptors after a test, far below the usual limit of 1024.
DESCRIPTORS_MAX = 300


@pytest.fixture(autouse=True)
def _few_descriptors() -> Iterator[None]:
    """Collect garbage after a test if many descriptors are open.

    Clusters of former tests are in reference cycles, which keep table files open.
    """
    yield
    if len(list(Path("/dev/fd").iterdir())) > DESCRIPTORS_MAX:
        gc.collect()


@pytest.fixture(scope="session", autouse=True)
def _no_process_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail the run if a process outlives the tests of this process, and end the process.

    The failure counts for the last test and names the tests that started the processes. The fixture
    starts first and ends last.
    """
    with no_process_left(tmp_path_factory.getbasetemp()):
        yield


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """Return a folder that all users can write, in place of a shared file system."""
    with tempfile.TemporaryDirectory(prefix="detcloud-shared-") as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFs]:
    """Yield an emulated S3 store for all tests of a process; every test creates its own bucket."""
    require("boto3")
    from tests.emulators.seaweedfs import seaweedfs

    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as store:
        yield store


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeGcs]:
    """Yield an emulated Google Cloud Storage for all tests of a process."""
    require("google.cloud.storage")
    from tests.emulators.fake_gcs import fake_gcs

    with fake_gcs(tmp_path_factory.mktemp("fake-gcs")) as store:
        yield store


@pytest.fixture
def gcs(gcs_server: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> FakeGcs:
    """Return the emulated Google Cloud Storage and name the store in the environment."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_server.url)
    return gcs_server


@pytest.fixture
def resumable_gcs(gcs_server: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGcs]:
    """Yield a proxy of the emulated store that supports resumable uploads."""
    from tests.emulators.gcs_sessions import serve_sessions

    with serve_sessions(gcs_server) as store:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", store.url)
        yield store


@pytest.fixture
def set_upload_part_bytes(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that sets the smallest part of a user's upload, until the test ends.

    A client and a cluster derive the size of the parts from this constant, not from a message.
    """
    return partial(monkeypatch.setattr, upload_parts, "SIGNED_PART_BYTES")


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """Yield an emulated Azure Blob Storage for all tests of a process."""
    require("azure.storage.blob")
    from tests.emulators.azurite import azurite

    with azurite(tmp_path_factory.mktemp("azurite")) as store:
        yield store


@pytest.fixture(scope="session")
def firestore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firestore]:
    """Yield an emulated Firestore for all tests of a process; every test creates a database."""
    require("google.auth")
    from tests.emulators.firestore import firestore

    with firestore(tmp_path_factory.mktemp("firestore")) as databases:
        yield databases


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgresql]:
    """Yield a server of PostgreSQL for all tests of a process; every test creates a schema."""
    require("psycopg")
    from tests.emulators.postgresql import postgresql

    with postgresql(tmp_path_factory.mktemp("postgresql") / "server.log") as running:
        yield running


@pytest.fixture(scope="session")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ministack]:
    """Yield an emulated AWS account for all tests of a process."""
    require("boto3")
    from tests.emulators.ministack import ministack

    with ministack(tmp_path_factory.mktemp("aws")) as running:
        yield running


@pytest.fixture(scope="session")
def strict_aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ministack]:
    """Yield an emulated AWS account that checks signatures and IAM permissions."""
    require("boto3")
    from tests.emulators.ministack import ministack

    with ministack(tmp_path_factory.mktemp("strict-aws"), enforces_iam=True) as running:
        yield running
