"""The trace of a submission through Google's front of Cloud Run."""

from collections.abc import Iterator

import pytest

from control_plane.access.principals import Role
from control_plane.actors.spans import RUN, span_id
from control_plane.telemetry.exports import export_telemetry
from detcloud.client import Client
from lambdas.gcp.function import Receive, Scope, Send, caller_scope
from tests.emulators.google_front import google_front
from tests.emulators.otlp_receiver import OtlpReceiver
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.app_server import serve_app
from tests.unit.api.cluster import TOKENS, Cluster

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    """A client of the cluster behind Google's front."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await cluster.app(caller_scope(scope), receive, send)

    with (
        serve_app(app) as service,
        google_front(service) as url,
        Client(url, TOKENS[Role.USER]) as client,
    ):
        yield client


def submit(cluster: Cluster, client: Client) -> Agent:
    """Create an experiment, and return an agent that may start the run."""
    client.post("/experiments", {"config": CONFIG, "model_code": cluster.store_code()})
    return Agent(cluster)


def run_variables(agent: Agent) -> list[str]:
    """Return the variables of the first run."""
    spec = agent.sync().json["desired"][0]["spec"]
    listed: list[str] = spec["environment_variables"]["cpu"]
    return listed


def test_run_is_below_the_span_of_the_client(
    cluster: Cluster, client: Client, receiver: OtlpReceiver
) -> None:
    client.traceparent = f"00-{TRACE}-{PARENT}-01"
    agent = submit(cluster, client)
    agent.take_work()
    agent.finish("1.1")
    export_telemetry(cluster.services, {})
    run = receiver.find_span("run of trial 1")
    assert (run.trace, run.parent) == (TRACE, PARENT)


def test_trace_that_the_client_does_not_sample_stays_unsampled(
    cluster: Cluster, client: Client
) -> None:
    client.traceparent = f"00-{TRACE}-{PARENT}-00"
    expected = span_id(TRACE, 1, 1, RUN)
    assert run_variables(submit(cluster, client))[0] == f"TRACEPARENT=00-{TRACE}-{expected}-00"


def test_trace_of_the_front_is_ignored(cluster: Cluster, client: Client) -> None:
    listed = run_variables(submit(cluster, client))
    assert [text for text in listed if text.startswith("TRACEPARENT=")] == []
