"""A project at the simulated Compute Engine under a virtual clock, and launch requests for it."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import urllib3

from control_plane.fleet.records import IntentRow, Market, Offering
from provisioner.clouds.gcp.google_api import COMPUTE_PATH, GoogleApi
from provisioner.clouds.gcp.provider import (
    BootScript,
    GceCloud,
    SettingsCompletion,
    unchanged_settings,
)
from provisioner.clouds.provider import CloudInstance, LaunchUnderWay
from provisioner.model import ProvisionerSettings
from tests.emulators.gce.machine import Machine
from tests.emulators.gce.project import Project
from tests.emulators.gce.serving import GceServer, gce_server
from tests.patience import ANSWER_SECONDS_MAX

BEGAN_MS = 1_700_000_000_000
A2 = "a2-highgpu-4g"
SPOT = Offering("a2/spot", A2, "", Market.SPOT, 4)
ON_DEMAND = Offering("a2/on_demand", A2, "", Market.ON_DEMAND, 4)
PLACE: Mapping[str, Any] = {"project": "p1", "region": "us-central1"}


class Account:
    """A project that a module's tests share. Each test resets the project."""

    def __init__(self, server: GceServer, api: GoogleApi) -> None:
        self._server = server
        self.url = server.url
        self.api = api
        self.now_ms = BEGAN_MS
        self.project = server.project

    def reset(self, **rules: Any) -> None:
        self.now_ms = BEGAN_MS
        self.project = self._server.project = Project(lambda: self.now_ms, **rules)

    def cloud(
        self,
        *offerings: Offering,
        script: BootScript = lambda request: b"#!/bin/sh\n",
        complete_settings: SettingsCompletion = unchanged_settings,
        **section: Any,
    ) -> GceCloud:
        settings = ProvisionerSettings(
            "gcp", offerings=offerings, section=json.dumps({**PLACE, **section})
        )
        return GceCloud(settings, script, lambda: self.now_ms, self.api, complete_settings)

    def launch(self, cloud: GceCloud, request: IntentRow) -> tuple[CloudInstance, ...]:
        """Launch instances, repeating the request every 5 s of virtual time until the end."""
        while True:
            try:
                return cloud.launch(request)
            except LaunchUnderWay:
                self.now_ms += 5_000

    def machine(self, name: str) -> Machine:
        return self.project.machines[name]

    def only_machine(self) -> Machine:
        (machine,) = self.project.machines.values()
        return machine

    def call_count(self, action: str) -> int:
        """Return the number of calls of an action."""
        return self.project.calls.count(action)


def compute_api(url: str) -> GoogleApi:
    """Return an API at an address, without credentials."""
    pool = urllib3.PoolManager(maxsize=8, retries=False, timeout=ANSWER_SECONDS_MAX)
    return GoogleApi(pool, lambda method, url: {}, f"{url}{COMPUTE_PATH}")


@contextmanager
def open_account() -> Iterator[Account]:
    with gce_server(Project(lambda: BEGAN_MS)) as server:
        api = compute_api(server.url)
        yield Account(server, api)
        api.close()


def request(
    name: str = "one", offering: Offering = ON_DEMAND, count: int = 1, **section: Any
) -> IntentRow:
    """Return a launch request with a token that is derived from `name`."""
    token = name.encode().hex().rjust(40, "0")
    text = json.dumps({**PLACE, **section}, sort_keys=True)
    return IntentRow(name, "c1", "blue", offering, count, token, BEGAN_MS, text)
