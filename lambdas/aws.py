"""Clients of AWS for the deployed functions."""

from typing import Any

from detcloud.aws import session


def client(service: str) -> Any:
    """A client of the service, with the environment's region and credentials."""
    return session().create_client(service)
