"""A simulated cluster on a simulated Compute Engine, in the virtual time of the cluster.

The Google Cloud provider launches, lists and deletes machines of the simulated project. A preempted
machine reads the notice from its metadata 30 s before its end. The provisioner finds preemptions in
the list of instances and in the operations.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from random import Random
from typing import Any

from control_plane.actors.messages.pool import PoolSettings
from control_plane.fleet.records import IntentRow, Market, Offering
from provisioner.clouds.fake.provider import FakeMachine
from provisioner.clouds.gcp.errors import answer_error
from provisioner.clouds.gcp.google_api import COMPUTE_PATH, GoogleApi, JsonObject
from provisioner.clouds.gcp.labels import from_labels
from provisioner.clouds.gcp.launch_request import NOTICE_SECONDS
from provisioner.clouds.gcp.provider import GceCloud
from provisioner.clouds.provider import CloudInstance, OutcomeUnknown
from provisioner.model import ProvisionerSettings
from simulator.machines.cloud import NO_FAULT_RULES, SimulatedCloud
from simulator.seeded.simulated_cluster import SimulatedCluster
from tests.emulators.gce.machine import GceError, Machine
from tests.emulators.gce.project import Project
from tests.emulators.gce.serving import ConnectionLost, call

PLACE = {"project": "p1", "region": "us-central1"}
ZONES = ("us-central1-a", "us-central1-b")
# Machine types by number of GPUs. No type has three.
TYPES = {1: "a2-highgpu-1g", 2: "a2-highgpu-2g", 3: "a2-highgpu-4g", 4: "a2-highgpu-4g"}
SLOTS = {"a2-highgpu-1g": 1, "a2-highgpu-2g": 2, "a2-highgpu-4g": 4}


class ProjectApi(GoogleApi):
    """A Google API that calls a simulated project in this process, without a server."""

    def __init__(self, project: Project) -> None:
        self._project = project

    def _send(
        self, method: str, path: str, query: Mapping[str, Any], body: bytes | None = None
    ) -> JsonObject:
        parameters = {name: str(value) for name, value in query.items()}
        content = json.loads(body or b"{}")
        try:
            return call(self._project, method, f"{COMPUTE_PATH}/{path}", parameters, content)
        except GceError as error:
            raise answer_error(error.status, error.content) from None
        except ConnectionLost:
            raise OutcomeUnknown("Google Cloud did not answer") from None


class ComputeEngine(SimulatedCloud):
    """The cloud of a simulated cluster. `machines` mirrors the machines of `project`."""

    def __init__(self, clock: Callable[[], int], random: Random) -> None:
        super().__init__(clock, random, (), rules=NO_FAULT_RULES)
        self.project = Project(
            clock,
            visible_ms=10_000,
            staging_ms=12_000,
            running_ms=20_000,
            ending_ms=15_000,
            operation_ms=12_000,
            late=True,
        )
        settings = ProvisionerSettings("gcp", section=json.dumps(PLACE))
        api = ProjectApi(self.project)
        self.provider = GceCloud(settings, lambda request: b"#!/bin/sh\n", clock, api)

    def launch(self, request: IntentRow) -> tuple[CloudInstance, ...]:
        """Launch instances by a bulk insert and add new machines to `machines`."""
        try:
            return self.provider.launch(request)
        finally:
            for machine in self.project.machines.values():
                if machine.name not in self.machines:
                    self.machines[machine.name] = self._describe_machine(machine)
                    self.on_machine_change(self.machines[machine.name])

    def list_instances(self, cluster: str, pool: str | None = None) -> Sequence[CloudInstance]:
        """List instances by labels, including ends that only operations report."""
        return self.provider.list_instances(cluster, pool)

    def terminate(self, ids: Sequence[str]) -> None:
        """Delete instances and set the end times of the machines."""
        for name in ids:
            self.on_terminate(name)
        self.provider.terminate(ids)
        for name in ids:
            self._follow_end(name)

    def boot_log(self, instance: str) -> str:
        """Return the output of the serial port."""
        return self.provider.boot_log(instance)

    def shut_down(self, name: str) -> None:
        """Shut a machine down from inside and set the end time of the machine."""
        self.project.shut_down(name)
        self._follow_end(name)

    def interrupt(self, name: str, notice_ms: int | None) -> None:
        """Preempt a machine with a notice, or fail the host of the machine without a notice.

        `notice_ms` must be NOTICE_SECONDS in milliseconds or None.
        """
        machine, now_ms = self.machines[name], self.clock()
        if notice_ms is None:
            self.project.machines[name].end(now_ms, 0, delete=True)
        else:
            assert notice_ms == NOTICE_SECONDS * 1000
            self.project.preempt(name)
            machine.notice_at_ms = now_ms
        machine.gone_ms = now_ms + (notice_ms or 0)

    def _describe_machine(self, machine: Machine) -> FakeMachine:
        market = Market.SPOT if machine.is_spot else Market.ON_DEMAND
        return FakeMachine(
            id=machine.name,
            offering=gce_offering(SLOTS[machine.machine_type], machine.zone, market),
            tags=from_labels(machine.labels),
            launched_ms=machine.inserted_ms,
            visible_ms=machine.visible_ms,
            running_ms=machine.running_ms,
            boots_ms=machine.running_ms + self.random.randint(*NO_FAULT_RULES.boot_ms),
        )

    def _follow_end(self, name: str) -> None:
        """Copy the end time of a project machine and report the change. Skip running machines."""
        ends, machine = self.project.machines[name], self.machines[name]
        if ends.asked_ms is None:
            return
        gone_ms = ends.asked_ms + ends.ending_ms
        machine.asked_ms = machine.asked_ms or ends.asked_ms
        machine.gone_ms = min(gone_ms, machine.gone_ms or gone_ms)
        self.on_machine_change(machine)


class ComputeEngineCluster(SimulatedCluster):
    """A simulated cluster on the simulated Google Cloud."""

    notices_ms = (NOTICE_SECONDS * 1000,)

    def _make_cloud(self, seed: int) -> SimulatedCloud:
        return ComputeEngine(self.now_ms, Random(f"{seed}/cloud"))

    def _sample_pool(self, number: int) -> PoolSettings:
        """Sample pool settings and replace the offerings by Compute Engine machines."""
        sampled = super()._sample_pool(number)
        if not sampled.provider:
            return sampled
        fields = json.loads(sampled.provider)
        sizes = dict.fromkeys(SLOTS[TYPES[offering["slots"]]] for offering in fields["offerings"])
        offered = [
            gce_offering(slots, zone, market)
            for slots in sizes
            for market in (Market.SPOT, Market.ON_DEMAND)
            for zone in ZONES
        ]
        self.cloud.catalog = tuple(dict.fromkeys((*self.cloud.catalog, *offered)))
        fields |= {"type": "gcp", **PLACE, "offerings": [asdict(offering) for offering in offered]}
        return replace(sampled, provider=json.dumps(fields))


def gce_offering(slots: int, zone: str, market: Market) -> Offering:
    """Return the offering of machines with `slots` GPUs in a zone and a market."""
    price = slots * (0.3 if market is Market.SPOT else 1.0)
    name = f"{TYPES[slots]}/{zone}/{market}"
    return Offering(name, TYPES[slots], zone, market, slots, price)
