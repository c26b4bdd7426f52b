from __future__ import annotations

from detcloud.agent.address import local_address


def test_an_agent_is_reached_where_it_speaks_from() -> None:
    assert local_address("http://127.0.0.1:8080") == "127.0.0.1"
    assert local_address("http://host:99999") == "127.0.0.1"
