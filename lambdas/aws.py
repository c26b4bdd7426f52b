"""Clients of AWS for the deployed functions, each of which is made when it is first used."""

from collections.abc import Callable
from functools import cached_property
from typing import Any


class LateClient:
    """Stands for the client that `make` makes: making it takes longer than most requests."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    @cached_property
    def _client(self) -> Any:
        return self._make()


def client(service: str) -> Any:
    """A client of the service, with the environment's region and credentials."""

    def make() -> Any:
        from detcloud.aws import session

        return session().create_client(service)

    return LateClient(make)
