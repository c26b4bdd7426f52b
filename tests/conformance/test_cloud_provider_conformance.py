from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from control_plane.fleet.records import IntentRow, Market, Offering
from detcloud.shared.processes import PROC, list_descendants
from lambdas.clock import now_ms
from provisioner.clouds.aws.provider import Ec2Cloud
from provisioner.clouds.fake.provider import FakeCloud, FakeRules
from provisioner.clouds.gcp.google_api import GoogleApi
from provisioner.clouds.gcp.launch_request import GceSettings
from provisioner.clouds.gcp.provider import GceCloud
from provisioner.clouds.local.provider import LocalProcesses
from provisioner.clouds.provider import CloudInstance, CloudProvider, LaunchUnderWay
from provisioner.model import ProvisionerSettings
from tests.conformance.cloud_provider import CloudProviderContract, Wait
from tests.emulators.ec2.region import Region
from tests.emulators.ec2.serving import Ec2Server, ec2_server
from tests.emulators.gce.project import Project
from tests.emulators.gce.serving import GceServer, gce_server
from tests.patience import wait_until
from tests.unit.provisioner.gce_account import compute_api


class TestFakeCloud(CloudProviderContract):
    """A cloud that shows, starts and ends instances slowly, as well-behaved clouds do."""

    RULES = FakeRules(
        visible_ms=(10_000, 40_000),
        running_ms=(5_000, 20_000),
        boot_ms=(10_000, 60_000),
        ending_ms=(5_000, 30_000),
        stale_ms=30_000,
        partial_share=0.3,
    )

    @pytest.fixture
    def time_ms(self) -> list[int]:
        return [1_000_000]

    @pytest.fixture(params=range(5))
    def cloud(self, request: pytest.FixtureRequest, time_ms: list[int]) -> CloudProvider:
        sold = (Offering("small/a/spot", "small", "a", Market.SPOT, 4, 0.3),)
        return FakeCloud(lambda: time_ms[0], Random(request.param), sold, self.RULES)

    @pytest.fixture
    def reopen(self, cloud: CloudProvider) -> Callable[[], CloudProvider]:
        return lambda: cloud

    @pytest.fixture
    def wait(self, time_ms: list[int]) -> Wait:
        return _waiting(time_ms)


# A stand-in for an agent: runs in a folder until SIGTERM. A handler of the signal could run just
# before `pause`, which would then wait for ever.
AGENT = "import signal as s; s.pthread_sigmask(s.SIG_BLOCK, {s.SIGTERM}); s.sigwait({s.SIGTERM})"


class TestLocalProcesses(CloudProviderContract):
    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Iterator[Callable[[], CloudProvider]]:
        def command(name: str, request: object, work: Path) -> list[str]:
            return [sys.executable, "-c", AGENT, "detcloud", str(work)]

        yield lambda: LocalProcesses(tmp_path / "instances", command, "http://here", now_ms)
        _end_all(tmp_path)

    @pytest.fixture
    def cloud(self, reopen: Callable[[], CloudProvider]) -> CloudProvider:
        return reopen()

    @pytest.fixture
    def wait(self) -> Wait:
        def wait(holds: Callable[[], bool]) -> None:
            wait_until(holds, what="what a cloud comes to by itself")

        return wait


@pytest.fixture(scope="module")
def ec2() -> Iterator[tuple[Ec2Server, Any]]:
    with ec2_server(Region(lambda: 0)) as server:
        client = server.client()
        yield server, client
        client.close()


class TestEc2Cloud(CloudProviderContract):
    """The simulated EC2, slow to show, start and end instances, under a virtual clock."""

    @pytest.fixture
    def time_ms(self) -> list[int]:
        return [1_000_000_000_000]

    @pytest.fixture
    def reopen(self, ec2: tuple[Ec2Server, Any], time_ms: list[int]) -> Callable[[], CloudProvider]:
        account, client = ec2
        region = Region(lambda: time_ms[0], visible_ms=30_000, running_ms=20_000, ending_ms=30_000)
        account.region = region
        settings = ProvisionerSettings("aws", section='{"instance_type": "g5.12xlarge"}')
        return lambda: Ec2Cloud(settings, lambda request: b"boot", region.clock, client)

    @pytest.fixture
    def cloud(self, reopen: Callable[[], CloudProvider]) -> CloudProvider:
        return reopen()

    @pytest.fixture
    def wait(self, time_ms: list[int]) -> Wait:
        return _waiting(time_ms)


@pytest.fixture(scope="module")
def gce() -> Iterator[tuple[GceServer, GoogleApi]]:
    with gce_server(Project(lambda: 0)) as server:
        api = compute_api(server.url)
        yield server, api
        api.close()


class AttentiveGceCloud(GceCloud):
    """Compute Engine for a provider that polls every five seconds during a launch."""

    time_ms: list[int]

    def launch(self, request: IntentRow) -> tuple[CloudInstance, ...]:
        while True:
            try:
                return super().launch(request)
            except LaunchUnderWay:
                self.time_ms[0] += 5_000


class TestGceCloud(CloudProviderContract):
    """The simulated Compute Engine, with slow operations under a virtual clock.

    The section is the deployment's, as the suite's requests have no section.
    """

    @pytest.fixture
    def time_ms(self) -> list[int]:
        return [1_000_000_000_000]

    @pytest.fixture
    def reopen(
        self, gce: tuple[GceServer, GoogleApi], time_ms: list[int]
    ) -> Callable[[], CloudProvider]:
        account, api = gce
        project = account.project = Project(
            lambda: time_ms[0],
            operation_ms=12_000,
            visible_ms=30_000,
            running_ms=20_000,
            ending_ms=30_000,
        )
        settings = ProvisionerSettings("gcp", section='{"instance_type": {"gpu_num": 2}}')

        def complete(found: GceSettings) -> GceSettings:
            return replace(found, project="p1", region="us-central1")

        def open_cloud() -> CloudProvider:
            cloud = AttentiveGceCloud(
                settings, lambda setting: b"boot", project.clock, api, complete
            )
            cloud.time_ms = time_ms
            return cloud

        return open_cloud

    @pytest.fixture
    def cloud(self, reopen: Callable[[], CloudProvider]) -> CloudProvider:
        return reopen()

    @pytest.fixture
    def wait(self, time_ms: list[int]) -> Wait:
        return _waiting(time_ms)


def _waiting(time_ms: list[int]) -> Wait:
    """Return a wait that advances virtual time."""

    def wait_until(holds: Callable[[], bool]) -> None:
        for _ in range(60):
            if holds():
                return
            time_ms[0] += 5_000
        raise AssertionError("waited 5 minutes in vain")

    return wait_until


def _end_all(folder: Path) -> None:
    # `Popen` returns during `exec`, and a process has an empty command line until `exec` ends.
    wait_until(
        lambda: all(process.command.strip() for process in list_descendants(os.getpid())),
        what="the command lines of new processes",
    )
    for entry in PROC.iterdir():
        try:
            if entry.name.isdigit() and os.fsencode(folder) in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
                os.waitpid(int(entry.name), 0)
        except (OSError, ChildProcessError):
            continue
