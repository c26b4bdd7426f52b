"""The agent's keeper of tunnels: lists of the cluster, abandoned tunnels, and room for streams."""

from __future__ import annotations

import resource
from typing import Any, cast

import pytest

from detcloud.agent import tunnels as agent_tunnels
from detcloud.agent.node import Node
from detcloud.agent.tunnel_services import TunnelServices
from detcloud.agent.tunnels import RESERVED_DESCRIPTORS, AgentTunnels, AllocationPorts, Targets
from detcloud.shared.http import ApiError
from detcloud.shared.tunnel import tunnel_end
from detcloud.shared.tunnel.multiplexer import ResetReason
from tests.patience import wait_until

ENTRY = {"tunnel": "tunnel-1", "allocation": "3.1", "ports": [80]}


class FakeTransport:
    """A cluster that refuses tickets with `status`, and records the requests."""

    requests: list[tuple[str, str]]
    status: int

    def __init__(self, url: str, token: str | None) -> None:
        assert token == "token"

    def request(self, method: str, path: str, *arguments: Any, **options: Any) -> Any:
        self.requests.append((method, path))
        raise ApiError(self.status, "refused", "the cluster refuses")

    def close(self) -> None:
        pass


@pytest.fixture
def transport(monkeypatch: pytest.MonkeyPatch) -> type[FakeTransport]:
    class Fresh(FakeTransport):
        pass

    Fresh.requests, Fresh.status = [], 503
    monkeypatch.setattr(agent_tunnels, "Transport", Fresh)
    return Fresh


@pytest.fixture
def keeper(lines: list[str]) -> AgentTunnels:
    node = cast("Node", None)
    return AgentTunnels("http://cluster", "agent-1", lambda: "token", node, lines.append)


@pytest.fixture
def lines() -> list[str]:
    return []


def test_abandoned_tunnel_is_closed_on_the_cluster(
    keeper: AgentTunnels,
    transport: type[FakeTransport],
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tunnel_end, "RESUME_SECONDS_MAX", 0.0)
    keeper.apply([ENTRY])
    wait_until(lambda: len(keeper) == 0)
    assert transport.requests[-1] == ("DELETE", "/api/v1/agents/agent-1/tunnels/tunnel-1")
    assert any("could not be closed on the cluster: the cluster refuses" in x for x in lines)


def test_tunnel_that_the_cluster_has_closed_is_not_closed_again(
    keeper: AgentTunnels, transport: type[FakeTransport], lines: list[str]
) -> None:
    transport.status = 409
    keeper.apply([ENTRY])
    wait_until(lambda: len(keeper) == 0)
    ticket = "POST", "/api/v1/agents/agent-1/tunnels/tunnel-1/tickets"
    assert transport.requests == [ticket]
    assert lines[-1] == "tunnel tunnel-1 ended: the cluster refuses"


def test_tunnel_that_leaves_the_list_is_closed(
    keeper: AgentTunnels, transport: type[FakeTransport], lines: list[str]
) -> None:
    keeper.apply([ENTRY])
    assert len(keeper) == 1
    keeper.apply([])
    wait_until(lambda: len(keeper) == 0)
    assert "the tunnel was closed: the allocation ended" in lines[-1]


@pytest.mark.parametrize("ports", [[0], [65_536], ["x"], None])
def test_malformed_entry_opens_nothing_and_is_logged(
    keeper: AgentTunnels, lines: list[str], ports: object
) -> None:
    keeper.apply([{**ENTRY, "ports": ports}])
    assert len(keeper) == 0
    assert "could not be opened" in lines[0]


def test_streams_leave_descriptors_to_the_agent(
    keeper: AgentTunnels, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = Targets(frozenset([80]), frozenset(["location"]))
    node = cast("Node", None)
    ports = AllocationPorts(node, TunnelServices(node), "3.1", targets, keeper._has_room)
    limits = (RESERVED_DESCRIPTORS, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits)
    # No descriptor remains for streams.
    assert ports.connect(80) is ResetReason.NO_ROOM
    assert ports.connect(81) is ResetReason.NOT_ALLOWED
    assert ports.serve("location") is ResetReason.NO_ROOM
    assert ports.serve("ssh") is ResetReason.NOT_ALLOWED
