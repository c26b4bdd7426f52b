"""The self-test of a deployed cluster on Google Cloud, on the emulators.

The deployer's calls reach the simulated Compute Engine directly. The command's child process would
call Google itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from detcloud.cli.verification.check_programs import STAND_IN, CheckSettings, new_label
from detcloud.cli.verification.plan import make_plan
from detcloud.cli.verification.report import Report
from detcloud.cli.verification.self_test import run_self_test
from detcloud.cli.verification.steps import Session
from infra.gcp.google_api import GoogleError, JsonObject
from infra.gcp.verification import GcpVerifier
from infra.verification import run_part
from tests.emulators.gce import describing
from tests.emulators.gce.machine import GceError
from tests.emulators.gce.project import Project
from tests.end_to_end.cluster_steps import POOL, wait_until
from tests.end_to_end.gcp.cluster import variable

if TYPE_CHECKING:
    from tests.emulators.deployment_gcp import GcpDeployment

_INSTANCE = re.compile(r".*/zones/(?P<zone>[^/]+)/instances/(?P<name>[^/]+)(?P<verb>/\w+)?")


@dataclass
class Deployer:
    """Google's APIs for the deployer: the simulated Compute Engine, and Monitoring's policies."""

    project: Project
    policies: Sequence[Mapping[str, Any]]

    def call(self, method: str, url: str, body: JsonObject | None = None) -> JsonObject:
        """Answer a request of the self-test. Raise GoogleError for a missing resource."""
        place = urlsplit(url)
        if place.path.endswith("/alertPolicies"):
            return {"alertPolicies": self.policies}
        with self.project.lock:
            if place.path.endswith("/aggregated/instances"):
                # The project has only this cluster's instances.
                return describing.list_instances(self.project, {})
            found = _INSTANCE.fullmatch(place.path)
            assert found is not None, url
            try:
                if method == "DELETE":
                    return describing.delete_instance(self.project, found["zone"], found["name"])
            except GceError as error:
                raise GoogleError(error.status, str(error)) from None
            assert (method, found["verb"]) == ("POST", "/simulateMaintenanceEvent")
            self.project.preempt(found["name"])
            return {}


@dataclass
class Calls:
    """The calls of the cloud, without a child process."""

    verifier: GcpVerifier

    def call(
        self,
        part: str,
        instances: Iterable[str] = (),
        role: str = "",
        providers: Iterable[str] = (),
    ) -> dict[str, Any]:
        """Make the calls of a part, and return the answer."""
        return dict(run_part(self.verifier, part, list(instances), role, list(providers)))


# The self-test on AWS is in the gate; this test of Google's calls takes longer.
@pytest.mark.nightly
def test_self_test_preempts_a_machine_and_leaves_nothing(deployment: GcpDeployment) -> None:
    before = set(deployment.project.machines)
    policies = [
        {"displayName": deployment.names.part(name), "notificationChannels": ["mail"]}
        for name in ("errors", "minute")
    ]
    calls = Calls(GcpVerifier(deployment.names, Deployer(deployment.project, policies)))
    lines: list[str] = []
    with deployment.client() as client:
        pool = client.resource_pool(POOL).data
        [pool["offerings"]] = calls.call("prices", providers=[_provider(pool)])["offerings"]
        plan = make_plan([pool], "gcp")
        settings = CheckSettings(new_label(), (variable(deployment),))
        session = Session(client, calls, "gcp", STAND_IN, lines.append, settings=settings)
        report = Report({}, plan)
        assert not run_self_test(session, report, ())
        assert list(client.experiments(label=settings.label, archived=None)) == []
    steps = {step.name: step for step in report.steps}
    results = [step.result for step in report.steps]
    assert results == ["ok", "ok", "ok", "skipped", "ok"], report.render()
    assert steps["tunnel"].details["seconds to the first byte"] > 0
    notice = steps[f"notice in pool {POOL}"].details
    assert not notice["simulated"]
    assert notice["resumed at batch"] == notice["saved at batch"] > 0
    assert notice["first machine"] != notice["second machine"]
    assert "Google has no call" in steps["alarms"].reason
    assert len(set(deployment.project.machines) - before) >= 2
    wait_until(lambda: not deployment.billed_instances(), 60, "an empty pool")


def _provider(pool: Mapping[str, Any]) -> str:
    return json.dumps(pool["config"]["provider"])
