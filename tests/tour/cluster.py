"""The tour's cluster: the product's parts on a table, with a fixed clock and a fake cloud."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from control_plane.access.principals import Role
from control_plane.actors import addresses
from control_plane.actors.messages.pool import PoolConfigured, PoolSettings
from control_plane.fleet.notices import InstanceNotice, read_notices
from control_plane.fleet.records import Market, Offering
from control_plane.objects.store import model_code_key
from control_plane.scheduling.model import SchedulerRules
from control_plane.state.memory import MemoryTable
from lambdas.builder import Cluster
from lambdas.tick_steps import TickSteps
from provisioner.clouds.provider import CloudProvider
from provisioner.model import ProvisionerSettings
from tests.tour.handlers import place_of
from tests.tour.recorder import Recorder, RecordingCloud, RecordingTable
from tests.unit.api.adapters import ApiAdapters
from tests.unit.api.cluster import TOKENS, V1, archive_of, role_tokens
from tests.unit.api.exchange import Answer, call

POOL = "default"
SPOT = Offering("small/a/spot", "small", "a", Market.SPOT, 2, 0.3)


class RecordingApp:
    """The API application, which reports each request with the endpoint to a recorder."""

    def __init__(self, app: ASGIApp, recorder: Recorder) -> None:
        self._app = app
        self._recorder = recorder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hop = self._recorder.add(f"{scope['method']} {scope['path']}")
        await self._app(scope, receive, send)
        hop.place = place_of(scope["endpoint"].__code__)


class TourAdapters(ApiAdapters):
    """The adapters of the tour: a recorded table in memory, and a fake cloud.

    Attributes:
        cloud: the fake cloud, which has the clock of the cluster.
    """

    def __init__(self, folder: Path, recorder: Recorder) -> None:
        table = RecordingTable(MemoryTable(), recorder)
        super().__init__(folder, frozenset({"fake"}), table=table)
        self.cloud = RecordingCloud(self.stopped_clock, Random(1), (SPOT,))
        self.cloud.recorder = recorder

    @cached_property
    def random(self) -> Random:
        return Random(1)

    def cloud_provider(self, settings: ProvisionerSettings) -> CloudProvider:
        """Return the fake cloud. Raises ConfigurationError for a different type of provider."""
        self._check_provider_type(settings)
        return self.cloud

    def instance_notices(self) -> Iterable[InstanceNotice]:
        """Return the notices in the state table."""
        return read_notices(self.state_table)


class TourCluster:
    """A cluster with one pool.

    Args:
        folder: an empty folder for objects.
        has_cloud: whether the pool launches spot instances of the fake cloud.
    """

    def __init__(self, folder: Path, recorder: Recorder, *, has_cloud: bool = False) -> None:
        self.adapters = TourAdapters(folder, recorder)
        self._cluster = Cluster(self.adapters)
        self.app = RecordingApp(self._cluster.build_app(role_tokens()), recorder)
        settings = PoolSettings(SchedulerRules("fair_share"), provider=_provider(has_cloud))
        configured = PoolConfigured(POOL, settings)
        self._cluster.engine.execute_command(addresses.pool(POOL), configured)

    def post_experiment(self, config: str) -> Answer:
        """Store model code and submit an experiment with the code, as a user."""
        content = archive_of(("train.py", b"print(1)\n"))
        digest = hashlib.sha256(content).hexdigest()
        self.adapters.object_store.put(model_code_key(digest), content)
        body = {"config": config, "model_code": digest}
        return call(self.app, "POST", V1 + "/experiments", token=TOKENS[Role.USER], content=body)

    def provision(self, after_ms: int = 60_000) -> None:
        """Advance the clock, then run the provisioning step of a tick."""
        self.adapters.stopped_clock.ms += after_ms
        TickSteps(self._cluster).provisioning.run()


def _provider(has_cloud: bool) -> str:
    """Return the provider section of the pool as JSON, "" without a cloud."""
    if not has_cloud:
        return ""
    fields: Mapping[str, Any] = {
        "type": "fake",
        "max_instances": 2,
        "offerings": [asdict(SPOT)],
    }
    return json.dumps(fields)
