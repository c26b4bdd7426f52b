"""An account at the simulated EC2 under a virtual clock, and launch requests for it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from control_plane.fleet.records import IntentRow, Market, Offering
from provisioner.clouds.aws.launch_templates import UserData
from provisioner.clouds.aws.provider import Ec2Cloud, SettingsCompletion, unchanged_settings
from provisioner.model import ProvisionerSettings
from tests.emulators.ec2.machine import Machine
from tests.emulators.ec2.region import Region
from tests.emulators.ec2.serving import Ec2Server, ec2_server

BEGAN_MS = 1_700_000_000_000
G5 = "g5.12xlarge"
SPOT = Offering("g5/spot", G5, "", Market.SPOT, 4)
ON_DEMAND = Offering("g5/on_demand", G5, "", Market.ON_DEMAND, 4)


class Account:
    """An account that a module's tests share. Each test resets the account."""

    def __init__(self, server: Ec2Server, api: Any) -> None:
        self._server = server
        self.url = server.url
        self.api = api
        self.now_ms = BEGAN_MS
        self.region = server.region

    def reset(self, **rules: Any) -> None:
        self.now_ms = BEGAN_MS
        self.region = self._server.region = Region(lambda: self.now_ms, **rules)

    def cloud(
        self,
        *offerings: Offering,
        user_data: UserData = lambda request: b"#!/bin/sh\n",
        complete_settings: SettingsCompletion = unchanged_settings,
        **section: Any,
    ) -> Ec2Cloud:
        settings = ProvisionerSettings("aws", offerings=offerings, section=json.dumps(section))
        return Ec2Cloud(settings, user_data, lambda: self.now_ms, self.api, complete_settings)

    def machine(self, name: str) -> Machine:
        return self.region.machines[name]

    def call_count(self, action: str) -> int:
        """Return the number of calls of an action."""
        return self.region.calls.count(action)


@contextmanager
def open_account() -> Iterator[Account]:
    with ec2_server(Region(lambda: BEGAN_MS)) as server:
        api = server.client()
        yield Account(server, api)
        api.close()


def request(
    name: str = "one", offering: Offering = ON_DEMAND, count: int = 1, **section: Any
) -> IntentRow:
    """Return a launch request with a token that is derived from `name`."""
    token = name.encode().hex().rjust(40, "0")
    text = json.dumps(section, sort_keys=True)
    return IntentRow(name, "c1", "blue", offering, count, token, BEGAN_MS, text)
