"""Clients of AWS for the deployed functions."""

from typing import Any

from botocore.session import Session


def client(service: str) -> Any:
    """A client of the service, with the environment's region and credentials."""
    return Session().create_client(service)
