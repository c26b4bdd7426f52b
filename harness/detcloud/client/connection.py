"""The connection to a cluster's HTTP API: the address, the token, and requests for JSON."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, Self, TypeVar

from detcloud.client.endpoint import configured_url, find_endpoint
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import Transport, query_text

API = "/api/v1"
PAGE_ITEMS_MAX = 500

Record = TypeVar("Record")


class NoCluster(DetcloudError):
    """No cluster is configured, and no local cluster runs."""


class Connection:
    """A connection to a cluster's API, with a token. Threads may share a connection.

    `url` is the address without a slash at the end, `http` the transport. As a context manager, the
    connection is closed at the block's end. Methods that send a request raise ApiError if the
    cluster refuses, and Unreachable without an answer.
    """

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        """Look up the address or the token, if missing. Connect at the first request.

        Without `token`, `find_endpoint` looks up both. Raises NoCluster if no address is known, and
        DetcloudError if the address or the token is invalid or no token for the address is known.
        """
        if token is None or not (token or url):
            endpoint = find_endpoint(url)
            url, token = (endpoint.url, endpoint.token) if endpoint else (None, "")
        elif url is None:
            url = configured_url()
        if url is None:
            raise NoCluster(
                "no cluster is configured and none runs here; start one with `detcloud up`, "
                "or set DETCLOUD_URL and DETCLOUD_TOKEN"
            )
        self.url = url.rstrip("/")
        try:
            self.http = Transport(self.url, token)
        except ValueError as error:
            raise DetcloudError(str(error)) from None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def get(self, path: str, **query: object) -> Any:
        """Send a GET for a path below /api/v1, and return the parsed JSON.

        A query of None or [] is left out. A list repeats the parameter.
        """
        return self.http.request("GET", f"{API}{path}{query_text(query)}")

    def items(
        self,
        path: str,
        limit: int | None = None,
        *,
        page_items: int = PAGE_ITEMS_MAX,
        **query: object,
    ) -> Iterator[dict[str, Any]]:
        """Yield the first `limit` items of a list, or all items, in pages of `page_items`.

        Pages are requested during the iteration. A query of None or [] is not sent. A list repeats
        the parameter.
        """
        cursor: str | None = None
        while limit is None or limit > 0:
            size = page_items if limit is None else min(limit, page_items)
            page = self.get(path, **query, limit=size, cursor=cursor)
            yield from page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return
            limit = None if limit is None else limit - len(page["items"])

    def records(
        self, path: str, kind: type[Record], *, page_items: int = PAGE_ITEMS_MAX, **query: object
    ) -> Iterator[Record]:
        """Yield all items of a list in pages of `page_items`, typed as `kind` without a check.

        A query of None or [] is not sent. A list repeats the parameter.
        """
        items: Iterator[Any] = self.items(path, None, page_items=page_items, **query)
        return items

    def post(self, path: str, body: object = None, key: str | None = None) -> Any:
        """Send a POST and return the parsed answer. A None body is sent as `{}`.

        A random idempotency key makes retries take effect once. With `key`, requests of other
        processes with this key and body also take effect once.
        """
        return self._mutate("POST", path, {} if body is None else body, key)

    def patch(self, path: str, body: object) -> Any:
        """Send a PATCH with a random idempotency key, and return the parsed answer."""
        return self._mutate("PATCH", path, body)

    def put(self, path: str, body: object) -> Any:
        """Send a PUT with a random idempotency key, and return the parsed answer."""
        return self._mutate("PUT", path, body)

    def delete(self, path: str, **query: object) -> Any:
        """Send a DELETE with a random idempotency key, and return the parsed answer.

        A query of None or [] is not sent. A list repeats the parameter.
        """
        return self._mutate("DELETE", f"{path}{query_text(query)}", None)

    def close(self) -> None:
        """Close the kept connections. The next request opens a new one."""
        self.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _mutate(self, method: str, path: str, body: object, key: str | None = None) -> Any:
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return self.http.request(method, f"{API}{path}", body, headers)
