"""Servers that all tests share, and what asks for a package that a machine may lack."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

import pytest
from hypothesis import settings

from tests.left_processes import no_process_left

if TYPE_CHECKING:
    from tests.emulators.azurite import Azurite
    from tests.emulators.fake_gcs import FakeGcs
    from tests.emulators.firestore import Firestore
    from tests.emulators.ministack import Ministack
    from tests.emulators.seaweedfs import SeaweedFs

ROOT = Path(__file__).resolve().parents[1]

# The same examples each time, on slow machines too: a gate that was green is green again on the
# same tree. `--hypothesis-profile=default` draws others.
settings.register_profile("gate", derandomize=True, deadline=None)
settings.load_profile("gate")


def require(name: str) -> ModuleType:
    """Imports a package, or skips the test (fails it when DETCLOUD_REQUIRE names the package).

    DETCLOUD_REQUIRE is a comma list: on a machine that is meant to have everything, a test must
    not vanish because an installation went wrong.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        miss(name, str(error))


def require_installed(name: str) -> None:
    """Does as `require` for a package that only other processes import, which may take seconds."""
    if importlib.util.find_spec(name) is None:
        miss(name, "there is no such module")


def miss(name: str, why: str) -> NoReturn:
    """Skip the test for want of a package, or fail it when DETCLOUD_REQUIRE names the package."""
    reason = f"{name} is not installed ({why}); `make setup` installs it"
    if name in os.environ.get("DETCLOUD_REQUIRE", "").split(","):
        pytest.fail(f"{reason}, and DETCLOUD_REQUIRE names it", pytrace=False)
    pytest.skip(reason, allow_module_level=True)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a module that imports a package which is not here, as `require` does; an error where
    DETCLOUD_REQUIRE says that the machine is meant to have everything.
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
    """Return the package of somebody else that an error says is missing."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name:
            package = error.name.partition(".")[0]
            return None if (ROOT / package).exists() or package == "detcloud" else error.name
        error = getattr(error, "cause", None) or error.__cause__
    return None


# Far below 1024, the usual limit of a process.
DESCRIPTORS_MAX = 300


@pytest.fixture(autouse=True)
def _few_descriptors() -> Iterator[None]:
    """Collect garbage after a test if many descriptors are open.

    Clusters of former tests are in reference cycles, and keep the files of their tables open.
    """
    yield
    if len(list(Path("/dev/fd").iterdir())) > DESCRIPTORS_MAX:
        gc.collect()


@pytest.fixture(scope="session", autouse=True)
def _no_process_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No process outlives the tests of this process: the first fixture to begin, the last to end.

    The failure counts as the last test's, and names those that started the processes.
    """
    with no_process_left(tmp_path_factory.getbasetemp()):
        yield


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFs]:
    """A store that speaks S3, for all tests of a process; each takes a bucket of its own."""
    require("boto3")
    from tests.emulators.seaweedfs import seaweedfs

    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as store:
        yield store


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeGcs]:
    """A store that speaks to Google's client, for all tests of a process."""
    require("google.cloud.storage")
    from tests.emulators.fake_gcs import fake_gcs

    with fake_gcs(tmp_path_factory.mktemp("fake-gcs")) as store:
        yield store


@pytest.fixture
def gcs(gcs_server: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> FakeGcs:
    """The store, named in the environment as Google's client wants it."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_server.url)
    return gcs_server


@pytest.fixture
def resumable_gcs(gcs_server: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGcs]:
    """A way to the store by which uploads are gone on with."""
    from tests.emulators.gcs_sessions import serve_sessions

    with serve_sessions(gcs_server) as store:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", store.url)
        yield store


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """A store that speaks to Azure's client, for all tests of a process."""
    require("azure.storage.blob")
    from tests.emulators.azurite import azurite

    with azurite(tmp_path_factory.mktemp("azurite")) as store:
        yield store


@pytest.fixture(scope="session")
def firestore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firestore]:
    """Databases of Firestore, for all tests of a process; each takes one of its own."""
    require("google.auth")
    from tests.emulators.firestore import firestore

    with firestore(tmp_path_factory.mktemp("firestore")) as databases:
        yield databases


@pytest.fixture(scope="session")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ministack]:
    """An account of AWS on this machine, which the tests of a process share."""
    require("boto3")
    from tests.emulators.ministack import ministack

    with ministack(tmp_path_factory.mktemp("aws")) as running:
        yield running


@pytest.fixture(scope="session")
def strict_aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ministack]:
    """Another account, which checks signatures and what they may do."""
    require("boto3")
    from tests.emulators.ministack import ministack

    with ministack(tmp_path_factory.mktemp("strict-aws"), enforces_iam=True) as running:
        yield running
