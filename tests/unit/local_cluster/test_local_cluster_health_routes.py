"""The routes of load balancers: `/healthz` and `/readyz`."""

import pytest
from starlette.types import Receive, Scope, Send

from control_plane.state.table import Unavailable
from local_cluster import health_routes
from local_cluster.health_routes import HealthRoutes
from tests.unit.api.exchange import call


class State:
    """A state that can fail, and counts reads."""

    def __init__(self) -> None:
        self.fails = False
        self.reads = 0

    def read(self) -> None:
        self.reads += 1
        if self.fails:
            raise Unavailable("the database is away")


async def refuse_all(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 418, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def routes(state: State, monkeypatch: pytest.MonkeyPatch) -> HealthRoutes:
    monkeypatch.setattr(health_routes, "CHECK_SECONDS_MIN", 0.0)
    return HealthRoutes(refuse_all, state.read)


def status(routes: HealthRoutes, path: str, method: str = "GET") -> int:
    # A load balancer may send any Host.
    return call(routes, method, path, headers=[("host", "10.1.2.3")]).status


def test_healthy_server_is_live_and_ready(routes: HealthRoutes) -> None:
    assert (status(routes, "/healthz"), status(routes, "/readyz")) == (200, 200)
    assert status(routes, "/readyz", "HEAD") == 200


def test_answers_contain_nothing_but_the_state(routes: HealthRoutes, state: State) -> None:
    assert call(routes, "GET", "/readyz").body == b"ok\n"
    state.fails = True
    assert call(routes, "GET", "/readyz").body == b"not ready\n"


def test_unreadable_state_is_not_ready_but_live(routes: HealthRoutes, state: State) -> None:
    state.fails = True
    assert (status(routes, "/healthz"), status(routes, "/readyz")) == (200, 503)
    state.fails = False
    assert status(routes, "/readyz") == 200


def test_stopping_server_is_not_ready_but_live(routes: HealthRoutes) -> None:
    routes.stop()
    assert (status(routes, "/healthz"), status(routes, "/readyz")) == (200, 503)


def test_strangers_cause_few_reads(routes: HealthRoutes, state: State) -> None:
    health_routes.CHECK_SECONDS_MIN = 60.0
    assert [status(routes, "/readyz") for _ in range(5)] == [200] * 5
    assert state.reads == 1


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/healthz"), ("GET", "/healthz/"), ("GET", "/api/v1/health")]
)
def test_other_requests_reach_the_application(routes: HealthRoutes, method: str, path: str) -> None:
    assert status(routes, path, method) == 418
