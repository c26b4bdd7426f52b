"""The requests that handles, downloads and uploads send. `Client` implements the protocol."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

from detcloud.client.records import Overview
from detcloud.shared.http import Transport

Record = TypeVar("Record")


class Requester(Protocol):
    """The sender of requests to a cluster's API. The methods are those of `Client`."""

    http: Transport

    def get(self, path: str, **query: object) -> Any: ...

    def items(
        self, path: str, limit: int | None = None, *, page_items: int = ..., **query: object
    ) -> Iterator[dict[str, Any]]: ...

    def records(
        self, path: str, kind: type[Record], *, page_items: int = ..., **query: object
    ) -> Iterator[Record]: ...

    def post(self, path: str, body: object = None, key: str | None = None) -> Any: ...

    def patch(self, path: str, body: object) -> Any: ...

    def put(self, path: str, body: object) -> Any: ...

    def delete(self, path: str, **query: object) -> Any: ...

    def overview(self) -> Overview: ...
