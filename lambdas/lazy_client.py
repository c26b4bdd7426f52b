"""Clients of clouds that the deployed functions create on first use."""

from collections.abc import Callable
from functools import cached_property
from typing import Any


class LazyClient:
    """A proxy that creates a client on first use and forwards attributes to this client.

    Creating a client takes longer than most requests, and many requests need no client. The first
    access to an attribute raises the errors of `make`.

    Args:
        make: creates the client. Called again on the next use if it raised an error.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    @cached_property
    def _client(self) -> Any:
        return self._make()
