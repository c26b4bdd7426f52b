"""Attempts with the proofs and tokens of an instance, in any cloud."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from control_plane.access.tokens import token_digest
from detcloud.client import Client
from detcloud.shared.http import Transport
from tests.end_to_end.cluster_steps import IMPATIENT, POOL, status_of, wait_until
from tests.end_to_end.laptop import Laptop

SLOTS = [{"id": 0, "type": "cuda", "uuid": "gpu-0", "name": "A10G"}]


class ApiHost(Protocol):
    """A cluster with an API."""

    def client(self, token: str = "") -> Client:
        """Return a client with a token, by default the administrator's."""


class Overheard(Transport):
    """A transport that records requests, like an eavesdropper."""

    bodies: list[Any] = []  # noqa: RUF012

    def request(self, method: str, path: str, body: object = None, *rest: Any, **named: Any) -> Any:
        self.bodies.append(body)
        return super().request(method, path, body, *rest, **named)


def enrol(deployment: ApiHost, token: str, name: str, pool: str) -> dict[str, Any]:
    with deployment.client(token) as client:
        body = {"name": name, "resource_pool": pool, "slots": SLOTS}
        enrolled: dict[str, Any] = client.post("/agents", body)
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
    """Wait until the agent is assigned an allocation; return the allocation."""
    given: list[str] = []

    def is_given() -> bool:
        given.extend(item["allocation"] for item in sync(agent, enrolled)["desired"])
        return bool(given)

    wait_until(is_given, 30, "work for the agent")
    return given[0]


def experiment_of(deployment: ApiHost) -> int:
    """Return the newest experiment's id."""
    with deployment.client() as client:
        return max(experiment.id for experiment in client.experiments())


def check_proof_scope(
    deployment: ApiHost, proof: dict[str, Any], name: str, other_name: str
) -> None:
    """Check that a stolen proof is refused for a different token and for a different instance."""
    with deployment.client("dct_nobodys") as thief:

        def send(name: str, **changed: str) -> int:
            path = f"/instances/{name}/identity"
            return status_of(lambda: thief.put(path, {**proof, **changed}))

        assert send(name) == 200
        assert send(name, token_sha256=token_digest("dct_the-thiefs")) == 403
        assert send(other_name) == 403


def check_token_scope(
    deployment: ApiHost,
    person: Laptop,
    join_token: str,
    name: str,
    other_name: str,
    end_instance: Callable[[], None],
) -> None:
    """Check the scope of an instance's tokens.

    A join token enrols only its instance, only in its pool. The agent's token allows only the
    agent's own calls. Both expire with the instance.
    """
    assert status_of(lambda: enrol(deployment, join_token, other_name, POOL)) == 403
    assert status_of(lambda: enrol(deployment, join_token, name, IMPATIENT)) == 403
    enrolled = enrol(deployment, join_token, name, POOL)
    with deployment.client(enrolled["token"]) as agent:
        assert set(map(status_of, user_requests(agent))) == {403}
        assert status_of(lambda: agent.post("/agents/other/sync", {"epoch": 1})) == 403
        allocation = assigned_allocation(agent, enrolled)

        def request_keys(allocation_id: str) -> int:
            path = f"/agents/{name}/storage-credentials"
            return status_of(lambda: agent.post(path, {"allocation": allocation_id}))

        assert (request_keys(allocation), request_keys("999.1")) == (200, 403)
        person.run("experiment", "kill", experiment_of(deployment))
        end_instance()
        wait_until(
            lambda: status_of(lambda: sync(agent, enrolled)) == 409, 10, "the end of the lease"
        )
        wait_until(lambda: request_keys(allocation) == 403, 10, "the end of the permissions")
    assert status_of(lambda: enrol(deployment, join_token, name, POOL)) == 403
