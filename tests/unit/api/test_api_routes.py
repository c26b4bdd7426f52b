"""The first request for a noun adds the noun's routes."""

import pytest
from starlette.routing import Route

from control_plane.access.principals import Role
from control_plane.api.route_guards import API_PATH
from control_plane.api.routes import NOUNS, all_routes, noun_routes
from tests.unit.api.cluster import TOKENS, Cluster
from tests.unit.api.exchange import call


def beginnings(noun: str) -> set[str]:
    """Return the first segments of the noun's paths, below the API's path."""
    paths = [route.path for route in noun_routes(noun) if isinstance(route, Route)]
    return {path.removeprefix(f"{API_PATH}/").partition("/")[0] for path in paths}


@pytest.mark.parametrize("noun", NOUNS)
def test_nouns_list_the_beginnings_of_paths(noun: str) -> None:
    assert beginnings(noun) == NOUNS[noun]


def test_request_loads_only_nouns_of_the_path(cluster: Cluster) -> None:
    assert cluster.app.routes == []
    for _ in range(2):
        assert call(cluster.app, "GET", f"{API_PATH}/trials/7", token=TOKENS[Role.USER]).status
        wanted = [
            noun_route for noun in ("trials", "metrics", "logs") for noun_route in noun_routes(noun)
        ]
        assert cluster.app.routes == wanted


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("GET", "/api/v1/nothing", 404, None),
        ("GET", "/api/v1", 404, None),
        ("GET", "/nothing", 404, None),
        ("GET", "/trials/7", 404, None),
        ("GET", "/api/v1/trials/7/nothing", 404, None),
        # The allowed methods come from several modules.
        ("PATCH", "/api/v1/trials/7/logs", 405, "GET"),
        ("DELETE", "/api/v1/cluster/configuration", 405, "GET, PUT"),
    ],
)
def test_rejects_unknown_paths_and_methods(
    cluster: Cluster, method: str, path: str, status: int, allowed: str | None
) -> None:
    answer = call(cluster.app, method, path, token=TOKENS[Role.ADMIN])
    assert (answer.status, answer.headers.get("allow")) == (status, allowed)


def test_openapi_is_complete_after_other_requests(cluster: Cluster) -> None:
    call(cluster.app, "GET", f"{API_PATH}/jobs", token=TOKENS[Role.USER])
    answer = call(cluster.app, "GET", f"{API_PATH}/openapi.json", token=TOKENS[Role.USER])
    described = [path for path, ways in answer.json["paths"].items() for _ in ways]
    listed = [
        route.path
        for route in all_routes()
        if isinstance(route, Route) and route.include_in_schema
        for _ in route.methods or ()
    ]
    assert sorted(described) == sorted(name.replace(":path", "") for name in listed)
