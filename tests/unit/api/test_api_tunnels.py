"""Tunnels over the API: owners, tickets, and their end with allocation, token and user."""

import json
from dataclasses import replace
from typing import Any

import pytest

from control_plane.access.principals import Principal, Role
from control_plane.access.tokens import token_digest, token_put
from control_plane.access.tunnel_relay import TunnelRelay
from control_plane.actors import addresses
from control_plane.errors import Code, RequestError
from control_plane.rows.user_rows import TOKEN
from control_plane.state.table import Delete, Expect, Key
from control_plane.usecases.tunnels import KEPT_MS, decode_tunnel, list_tunnels
from detcloud.shared.tunnel.keys import make_key
from detcloud.shared.tunnel.tickets import LIFETIME_MS, Side, make_binding, read_ticket
from tests.unit.api.adapters import RELAY
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import HOST, Answer, call

OTHER = "dct_another-users-token"
KEY = make_key()
BODY = {"trial_id": 1, "ports": [8888, 80], "certificate": KEY.certificate}


@pytest.fixture
def agent(cluster: Cluster) -> Agent:
    """An agent that runs trial 1 of `user-1`."""
    agent = Agent(cluster)
    assert cluster.create(CONFIG).status == 201
    assert "1.1" in agent.take_work()
    return agent


def open_tunnel(cluster: Cluster, **fields: Any) -> dict[str, Any]:
    answer = cluster.post("/tunnels", {**BODY, **fields})
    assert answer.status == 201, answer.body
    opened: dict[str, Any] = answer.json
    return opened


def agent_ticket(agent: Agent, tunnel: str, certificate: str = KEY.certificate) -> Answer:
    path = f"{V1}/agents/{agent.name}/tunnels/{tunnel}/tickets"
    body = {"certificate": certificate}
    return call(agent.app, "POST", path, token=agent.token, content=body)


def abandon(agent: Agent, tunnel: str) -> Answer:
    path = f"{V1}/agents/{agent.name}/tunnels/{tunnel}"
    return call(agent.app, "DELETE", path, token=agent.token)


def read_head(cluster: Cluster, agent: Agent) -> list[str]:
    """Return the tunnels in the head of the agent's actor."""
    state = cluster.services.engine.read_state(addresses.agent(agent.name))
    return [opened.tunnel for opened in state.tunnels]


def listed_tunnels(agent: Agent) -> list[str]:
    return [entry["tunnel"] for entry in agent.sync().json.get("tunnels", [])]


def test_open_tunnel_returns_relay_and_ticket(cluster: Cluster, agent: Agent) -> None:
    opened = open_tunnel(cluster)
    assert opened["relay_url"] == RELAY.url
    assert opened["peer_certificate"] == ""
    tunnel = opened["tunnel"]
    assert tunnel == {
        "id": tunnel["id"],
        "trial_id": 1,
        "allocation": "1.1",
        "agent_id": agent.name,
        "user": "user-1",
        "ports": [80, 8888],
        "services": [],
        "opened_ms": cluster.clock.ms,
        "agent_certificate": "",
    }
    ticket = read_ticket(opened["ticket"], RELAY.secret, cluster.clock.ms)
    assert (ticket.tunnel, ticket.side) == (tunnel["id"], Side.USER)
    assert ticket.binding == make_binding("user-1", "1.1", [80, 8888])
    assert ticket.expires_ms == cluster.clock.ms + LIFETIME_MS


def test_agent_hears_of_the_tunnel_and_answers(cluster: Cluster, agent: Agent) -> None:
    tunnel = open_tunnel(cluster)["tunnel"]["id"]
    answer = agent.sync().json
    assert answer["tunnels"] == [
        {
            "tunnel": tunnel,
            "allocation": "1.1",
            "user": "user-1",
            "ports": [80, 8888],
            "services": [],
            "is_answered": False,
        }
    ]
    other = make_key().certificate
    ticket = agent_ticket(agent, tunnel, other)
    assert ticket.status == 200, ticket.body
    assert ticket.json["peer_certificate"] == KEY.certificate
    assert read_ticket(ticket.json["ticket"], RELAY.secret, cluster.clock.ms).side is Side.AGENT
    assert cluster.get(f"/tunnels/{tunnel}").json["agent_certificate"] == other
    again = cluster.post(f"/tunnels/{tunnel}/tickets", {}).json
    assert again["peer_certificate"] == other
    assert agent.sync().json["tunnels"][0]["is_answered"] is True


def test_tunnel_leads_to_services_without_ports(cluster: Cluster, agent: Agent) -> None:
    opened = open_tunnel(cluster, ports=[], services=["ssh", "location"])
    names = ["location", "ssh"]
    assert (opened["tunnel"]["ports"], opened["tunnel"]["services"]) == ([], names)
    ticket = read_ticket(opened["ticket"], RELAY.secret, cluster.clock.ms)
    assert ticket.binding == make_binding("user-1", "1.1", [], names)
    [entry] = agent.sync().json["tunnels"]
    assert (entry["ports"], entry["services"]) == ([], names)
    answer = agent_ticket(agent, entry["tunnel"]).json
    own = read_ticket(answer["ticket"], RELAY.secret, cluster.clock.ms)
    assert own.binding == ticket.binding


def test_tunnel_of_an_older_version_has_no_services(cluster: Cluster, agent: Agent) -> None:
    tunnel = open_tunnel(cluster)["tunnel"]["id"]
    row = cluster.services.table.get(Key("tunnels", tunnel))
    assert row is not None
    fields = json.loads(row.body)
    del fields["services"]
    assert decode_tunnel(json.dumps(fields).encode()).services == ()


def test_revision_changes_with_the_tunnels(cluster: Cluster, agent: Agent) -> None:
    before = agent.sync().json["revision"]
    open_tunnel(cluster)
    assert agent.sync().json["revision"] != before


def test_tickets_differ(cluster: Cluster, agent: Agent) -> None:
    opened = open_tunnel(cluster)
    again = cluster.post(f"/tunnels/{opened['tunnel']['id']}/tickets", {}).json
    assert again["ticket"] != opened["ticket"]


def test_repeated_request_opens_one_tunnel(cluster: Cluster, agent: Agent) -> None:
    first = cluster.post("/tunnels", BODY, "key-1").json
    second = cluster.post("/tunnels", BODY, "key-1").json
    assert first["tunnel"]["id"] == second["tunnel"]["id"]
    assert first["ticket"] != second["ticket"]
    assert len(listed_tunnels(agent)) == 1


def test_other_users_neither_open_nor_use_nor_close(cluster: Cluster, agent: Agent) -> None:
    principal = Principal("user-2", Role.USER)
    cluster.services.table.commit((token_put(token_digest(OTHER), principal),))
    refused = call(cluster.app, "POST", f"{V1}/tunnels", token=OTHER, content=BODY)
    assert refused.status == 403
    assert "ask user-1 or an admin to open tunnels to it" in refused.json["error"]["message"]
    path = f"{V1}/tunnels/{open_tunnel(cluster)['tunnel']['id']}"
    assert call(cluster.app, "POST", f"{path}/tickets", token=OTHER, content={}).status == 403
    assert call(cluster.app, "DELETE", path, token=OTHER).status == 403
    assert call(cluster.app, "DELETE", path, token=TOKENS[Role.ADMIN]).status == 200


def test_another_agent_gets_no_ticket(cluster: Cluster, agent: Agent) -> None:
    tunnel = open_tunnel(cluster)["tunnel"]["id"]
    assert agent_ticket(Agent(cluster, "stranger"), tunnel).status == 403


def test_closed_tunnel_is_gone(cluster: Cluster, agent: Agent) -> None:
    tunnel = open_tunnel(cluster)["tunnel"]["id"]
    path = f"{V1}/tunnels/{tunnel}"
    assert call(cluster.app, "DELETE", path, token=TOKENS[Role.USER]).json["id"] == tunnel
    assert listed_tunnels(agent) == []
    assert cluster.get(f"/tunnels/{tunnel}").status == 404
    assert cluster.post(f"/tunnels/{tunnel}/tickets", {}).status == 404
    assert agent_ticket(agent, tunnel).status == 404


def test_tunnel_ends_with_its_allocation(cluster: Cluster, agent: Agent) -> None:
    tunnel = open_tunnel(cluster)["tunnel"]["id"]
    agent.finish("1.1")
    assert listed_tunnels(agent) == []
    refused = cluster.post(f"/tunnels/{tunnel}/tickets", {})
    assert refused.status == 409
    assert "allocation 1.1 has ended" in refused.json["error"]["message"]
    assert agent_ticket(agent, tunnel).status == 409


def test_tunnel_ends_with_the_token(cluster: Cluster, agent: Agent) -> None:
    digest = token_digest(OTHER)
    cluster.services.table.commit((token_put(digest, Principal("user-1", Role.USER)),))
    opened = call(cluster.app, "POST", f"{V1}/tunnels", token=OTHER, content=BODY).json
    tunnel = opened["tunnel"]["id"]
    assert listed_tunnels(agent) == [tunnel]
    cluster.services.table.commit((Delete(Key(TOKEN.partition, digest), Expect.ANYTHING),))
    assert listed_tunnels(agent) == []
    assert cluster.post(f"/tunnels/{tunnel}/tickets", {}).status == 409
    assert agent_ticket(agent, tunnel).status == 409


def test_unused_tunnel_expires(cluster: Cluster, agent: Agent) -> None:
    tunnel = open_tunnel(cluster)["tunnel"]["id"]
    cluster.clock.ms += KEPT_MS - 1
    assert cluster.post(f"/tunnels/{tunnel}/tickets", {}).status == 200
    cluster.clock.ms += KEPT_MS
    assert cluster.get(f"/tunnels/{tunnel}").status == 404
    assert listed_tunnels(agent) == []


def test_tickets_of_the_agent_keep_no_tunnel(cluster: Cluster, agent: Agent) -> None:
    tunnel = open_tunnel(cluster)["tunnel"]["id"]
    cluster.clock.ms += KEPT_MS - 1
    assert agent_ticket(agent, tunnel).status == 200
    cluster.clock.ms += 1
    assert agent_ticket(agent, tunnel).status == 404


def test_agent_closes_an_abandoned_tunnel(cluster: Cluster, agent: Agent) -> None:
    tunnel = open_tunnel(cluster)["tunnel"]["id"]
    stranger = Agent(cluster, "stranger")
    assert abandon(stranger, tunnel).status == 403
    assert listed_tunnels(agent) == [tunnel]
    assert abandon(agent, tunnel).json["id"] == tunnel
    assert listed_tunnels(agent) == []
    assert abandon(agent, tunnel).status == 404


def test_dead_tunnels_free_their_places(cluster: Cluster, agent: Agent) -> None:
    for _ in range(64):
        open_tunnel(cluster)
    cluster.clock.ms += KEPT_MS
    assert listed_tunnels(agent) == []
    tunnel = open_tunnel(cluster)["tunnel"]["id"]
    assert listed_tunnels(agent) == [tunnel]


def test_unanswered_tunnel_hurries_the_agent_for_two_minutes(
    cluster: Cluster, agent: Agent
) -> None:
    open_tunnel(cluster)
    tunnels = read_head(cluster, agent)
    assert list_tunnels(cluster.services, agent.name, tunnels).is_awaited
    cluster.clock.ms += 120_000
    listed = list_tunnels(cluster.services, agent.name, tunnels)
    # An agent that does not know tunnels must not be asked every second for a day.
    assert [entry["is_answered"] for entry in listed.entries] == [False]
    assert not listed.is_awaited


def test_trial_that_does_not_run_is_refused(cluster: Cluster, agent: Agent) -> None:
    agent.finish("1.1")
    refused = cluster.post("/tunnels", BODY)
    assert refused.status == 409
    assert "does not run now" in refused.json["error"]["message"]
    assert cluster.post("/tunnels", {**BODY, "trial_id": 99}).status == 404


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"ports": []}, "ports"),
        ({"ports": [0]}, "ports"),
        ({"ports": [65_536]}, "ports"),
        ({"ports": list(range(1, 34))}, "ports"),
        ({"ports": [], "services": []}, "ports"),
        ({"services": ["shell"]}, "services"),
        ({"services": ["x" * 65]}, "services"),
        ({"services": ["ssh"] * 5}, "services"),
        ({"certificate": "?"}, "certificate"),
        ({"certificate": ""}, "certificate"),
    ],
)
def test_invalid_bodies_are_refused(
    cluster: Cluster, agent: Agent, fields: dict[str, Any], place: str
) -> None:
    refused = cluster.post("/tunnels", {**BODY, **fields})
    assert refused.status == 422
    assert place in str(refused.json)


def test_tunnels_of_an_agent_are_limited(cluster: Cluster, agent: Agent) -> None:
    for _ in range(64):
        open_tunnel(cluster)
    refused = cluster.post("/tunnels", BODY)
    assert refused.status == 409
    assert "64 tunnels" in refused.json["error"]["message"]


def test_tickets_wait_for_a_relay_that_starts(
    cluster: Cluster, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(TunnelRelay, "find_relay", lambda self: None)
        opened = open_tunnel(cluster)
        tunnel = opened["tunnel"]["id"]
        fields = "relay_state", "relay_url", "relay_pin", "ticket"
        assert [opened[name] for name in fields] == ["starting", "", "", ""]
        # The agent's certificate is stored meanwhile.
        assert agent_ticket(agent, tunnel).json["relay_state"] == "starting"
        assert cluster.get(f"/tunnels/{tunnel}").json["agent_certificate"] == KEY.certificate
    ready = cluster.post(f"/tunnels/{tunnel}/tickets", {}).json
    assert (ready["relay_state"], ready["relay_url"]) == ("ready", RELAY.url)
    assert ready["ticket"]


def test_relay_of_the_own_server_is_at_the_called_address(
    cluster: Cluster, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TunnelRelay, "find_relay", lambda self: replace(self, url=""))
    opened = open_tunnel(cluster)
    assert opened["relay_url"] == f"http://{HOST}:8080"
    assert agent_ticket(agent, opened["tunnel"]["id"]).json["relay_url"] == f"http://{HOST}:8080"


def test_relay_that_cannot_start_opens_no_tunnel(
    cluster: Cluster, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(relay: TunnelRelay) -> None:
        raise RequestError(Code.CONFLICT, "a quota stops the relay; request more")

    monkeypatch.setattr(TunnelRelay, "find_relay", refuse)
    answer = cluster.post("/tunnels", BODY)
    assert answer.status == 409
    assert answer.json["error"]["message"] == "a quota stops the relay; request more"
    assert read_head(cluster, agent) == []
