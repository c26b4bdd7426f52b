from __future__ import annotations

from detcloud.agent.address import local_address


def test_local_address_towards_the_cluster() -> None:
    assert local_address("http://127.0.0.1:8080") == "127.0.0.1"
    assert local_address("http://host:99999") == "127.0.0.1"
