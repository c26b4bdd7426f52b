"""The agent's keeper of tunnels: lists of the cluster, abandoned tunnels, and room for streams."""

from __future__ import annotations

import resource
import threading
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


class FakeNode:
    """A node whose allocation 4.1 comes to its end."""

    def end_warning(self, name: str) -> str:
        return "this run ends in 3 min" if name == "4.1" else ""


class FakeEnd:
    """An end of a tunnel that only collects the sentences for the user."""

    open_sockets = 0
    is_abandoned = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.sentences: list[str] = []
        self._over = threading.Event()

    def notify(self, text: str) -> None:
        self.sentences.append(text)

    def stop(self, reason: str) -> None:
        self._over.set()

    def run(self) -> str:
        self._over.wait()
        return "stopped"


@pytest.fixture
def transport(monkeypatch: pytest.MonkeyPatch) -> type[FakeTransport]:
    class Fresh(FakeTransport):
        pass

    Fresh.requests, Fresh.status = [], 503
    monkeypatch.setattr(agent_tunnels, "Transport", Fresh)
    return Fresh


@pytest.fixture
def keeper(lines: list[str]) -> AgentTunnels:
    node = cast("Node", FakeNode())
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


def test_warnings_reach_the_tunnels_of_the_allocation(
    keeper: AgentTunnels, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[FakeEnd] = []

    def make_end(*arguments: Any, **options: Any) -> FakeEnd:
        ends.append(FakeEnd())
        return ends[-1]

    monkeypatch.setattr(agent_tunnels, "TunnelEnd", make_end)
    keeper.apply([ENTRY])
    keeper.apply([ENTRY, {**ENTRY, "tunnel": "tunnel-2", "allocation": "4.1"}])
    keeper.warn("3.1", "this run has been idle")
    # The second tunnel was opened after the warning of the end.
    assert [end.sentences for end in ends] == [
        ["this run has been idle"],
        ["this run ends in 3 min"],
    ]
    keeper.apply([])
    wait_until(lambda: len(keeper) == 0)


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
