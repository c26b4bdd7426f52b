"""Clients of AWS that the deployed functions create on first use."""

from typing import Any

from lambdas.lazy_client import LazyClient


def lazy_client(service: str, seconds_max: float | None = None) -> Any:
    """Return a proxy that creates a client of an AWS service on first use.

    The client uses the environment's region and credentials.

    Args:
        service: botocore's name of the service, for example `sts`.
        seconds_max: the time limit of a request without retries, in seconds. None: botocore's
            limits and retries.
    """

    def make() -> Any:
        from detcloud.shared.aws import new_session

        if seconds_max is None:
            return new_session().create_client(service)
        from botocore.config import Config

        limits = Config(
            connect_timeout=seconds_max / 2,
            read_timeout=seconds_max / 2,
            retries={"total_max_attempts": 1},
        )
        return new_session().create_client(service, config=limits)

    return LazyClient(make)
