"""Attempts with the proofs and tokens of an instance, in whichever cloud it is."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from detcloud.client import Client
from detcloud.shared.http import Transport
from tests.end_to_end.cluster_steps import wait_until

SLOTS = [{"id": 0, "type": "cuda", "uuid": "gpu-0", "name": "A10G"}]


class ApiHost(Protocol):
    """A cluster with an API."""

    def client(self, token: str = "") -> Client:
        """Return a client with a token, the administrator's if empty."""


class Overheard(Transport):
    """A transport that keeps what an instance sends, as somebody on the way would see it."""

    bodies: list[Any] = []  # noqa: RUF012

    def request(self, method: str, path: str, body: object = None, *rest: Any, **named: Any) -> Any:
        self.bodies.append(body)
        return super().request(method, path, body, *rest, **named)


def enrol(deployment: ApiHost, token: str, name: str, pool: str) -> dict[str, Any]:
    with deployment.client(token) as client:
        asked = {"name": name, "resource_pool": pool, "slots": SLOTS}
        enrolled: dict[str, Any] = client.post("/agents", asked)
        return enrolled


def user_requests(client: Client) -> list[Callable[[], object]]:
    reads = ("experiments", "agents", "tokens", "jobs", "resource-pools", "whoami", "cost")
    return [
        *(partial(client.get, f"/{path}") for path in reads),
        lambda: client.post("/tokens", {"role": "admin"}),
        lambda: client.post("/experiments", {"config": "name: mine"}),
        lambda: client.post("/agents/other/disable"),
    ]


def sync(agent: Client, enrolled: dict[str, Any]) -> Any:
    return agent.post(f"/agents/{enrolled['agent_id']}/sync", {"epoch": enrolled["epoch"]})


def assigned_allocation(agent: Client, enrolled: dict[str, Any]) -> str:
    """The allocation that the agent is given."""
    given: list[str] = []

    def is_given() -> bool:
        given.extend(it["allocation"] for it in sync(agent, enrolled)["desired"])
        return bool(given)

    wait_until(is_given, 30, "work for the agent")
    return given[0]


def experiment_of(deployment: ApiHost) -> int:
    """The newest."""
    with deployment.client() as client:
        return max(experiment.id for experiment in client.experiments())
