"""Lazily created clients of clouds for the deployed functions."""

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
