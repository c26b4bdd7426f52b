"""Clients of AWS that the deployed functions create on first use."""

from typing import Any

from lambdas.lazy_client import LazyClient


def lazy_client(service: str) -> Any:
    """Return a proxy that creates a client of an AWS service on first use.

    The client uses the environment's region and credentials.

    Args:
        service: botocore's name of the service, for example `sts`.
    """

    def make() -> Any:
        from detcloud.shared.aws import new_session

        return new_session().create_client(service)

    return LazyClient(make)
