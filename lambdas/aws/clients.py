"""Lazily created AWS clients for the deployed functions."""

from typing import Any

from lambdas.lazy_client import LazyClient


def lazy_client(service: str) -> Any:
    """Return a client of the service, with the environment's region and credentials."""

    def make() -> Any:
        from detcloud.shared.aws import new_session

        return new_session().create_client(service)

    return LazyClient(make)
