"""Clients of AWS for the deployed functions, each of which is made when it is first used."""

from collections.abc import Callable
from functools import cached_property
from typing import Any


class LazyClient:
    """A stand-in for the client that `make` makes: making it takes longer than most requests."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    @cached_property
    def _client(self) -> Any:
        return self._make()


def lazy_client(service: str) -> Any:
    """Return a client of the service, with the environment's region and credentials."""

    def make() -> Any:
        from detcloud.shared.aws import new_session

        return new_session().create_client(service)

    return LazyClient(make)
