"""Forged cursors on all lists of the API."""

import base64
import json

import pytest

from control_plane.access.principals import Role
from control_plane.api.route_guards import GuardedRoute
from control_plane.api.routes import all_routes
from tests.unit.api.agent_side import CONFIG
from tests.unit.api.cluster import TOKENS, Cluster
from tests.unit.api.exchange import call

IDS = {"experiment_id": "1", "trial_id": "1", "uuid": "0", "name": "x", "pool": "default"} | {
    "webhook_id": "1"
}
NAMES = [
    *("trials", "checkpoints", "experiment-checkpoints", "checkpoint-files", "metrics", "lines"),
    *(
        "replay",
        "history",
        "jobs",
        "token-entries",
        "templates",
        "agent-users",
        "agents",
        "experiments",
    ),
    *("models", "model-versions#x", "experiment-code", "timelines", "media", "results"),
    *("experiment-views", "experiment-lines", "reports", "schedules"),
    *("retention-trials",),
    *("webhooks", "webhook-deliveries#000000000001"),
]


def list_paths() -> list[str]:
    """Return the paths of all routes with a cursor."""
    paths = []
    for route in all_routes():
        if isinstance(route, GuardedRoute) and "GET" in (route.methods or ()):
            route.complete()
            if "cursor" in _query_parameters(route):
                paths.append(route.path.format(**IDS))
    return paths


def _query_parameters(route: GuardedRoute) -> list[str]:
    dependencies = [route.dependant, *route.dependant.dependencies]
    return [parameter.alias for dependant in dependencies for parameter in dependant.query_params]


@pytest.mark.parametrize("value", ["\ud800", 10**30], ids=["surrogate", "huge"])
def test_forged_cursors_cause_no_internal_error(cluster: Cluster, value: str | int) -> None:
    cluster.create(CONFIG)
    paths = list_paths()
    assert len(paths) >= 10
    for path in paths:
        for name in NAMES:
            for others in ([value], ["a", 1, value, 1]):
                content = json.dumps([name, *others]).encode()
                cursor = base64.urlsafe_b64encode(content).decode().rstrip("=")
                target = f"{path}?cursor={cursor}"
                answer = call(cluster.app, "GET", target, token=TOKENS[Role.ADMIN])
                assert answer.status in (200, 404, 422), (target, answer.body)
