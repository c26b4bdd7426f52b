"""The connection to a cluster's HTTP API: the address, the token, and requests for JSON."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, Self, TypeVar

from detcloud.client.endpoint import configured_url, find_endpoint, pin_known_server
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import Transport, query_text
from detcloud.shared.pins import pin_server

API = "/api/v1"
PAGE_ITEMS_MAX = 500

Record = TypeVar("Record")


class NoCluster(DetcloudError):
    """No cluster is configured, and no local cluster runs."""


class Connection:
    """A connection to a cluster's API, with a token. Threads may share a connection.

    `url` is the address without a slash at the end, `http` the transport. `traceparent` is the
    context of the caller's trace in W3C's form, which new experiments continue, or "". As a context
    manager, the connection is closed at the block's end. Methods that send a request raise ApiError
    if the cluster refuses, and Unreachable without an answer.
    """

    def __init__(
        self, url: str | None = None, token: str | None = None, *, pin: str | None = None
    ) -> None:
        """Look up the address or the token, if missing. Connect at the first request.

        Args:
            url: the address of the cluster, such as `http://127.0.0.1:8470`.
            token: the token. Without a token, both are looked up: DETCLOUD_URL and DETCLOUD_TOKEN,
                the stored credentials, or the local cluster. With a token alone, only the address
                is looked up.
            pin: the SHA-256 digest of the server's certificate, `sha256:` and 64 hexadecimal
                digits. Connections then accept only this certificate. None: DETCLOUD_PIN or the
                pin that `detcloud login` stored, or any certificate of a known authority.

        Raises:
            NoCluster: no cluster is configured, and the local cluster does not run.
            DetcloudError: the address, the token or the pin is invalid, or no token for the address
                is known.
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
        self.traceparent = ""
        try:
            if pin is None:
                pin_known_server(self.url)
            else:
                pin_server(self.url, pin)
            self.http = Transport(self.url, token)
        except ValueError as error:
            raise DetcloudError(str(error)) from None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def get(self, path: str, **query: object) -> Any:
        """Send a GET request, and return the parsed JSON.

        Args:
            path: the path below /api/v1, such as `/experiments/1`.
            query: parameters of the query. None and [] are left out. A list repeats the parameter.
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
        """Yield the items of a list, page by page. Pages are requested during the iteration.

        Args:
            path: the path of the list below /api/v1, such as `/experiments`.
            limit: the most items to yield; None for all.
            page_items: the most items of a page.
            query: parameters of the query. None and [] are left out. A list repeats the parameter.
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
        """Yield all items of a list, page by page, with a type for type checkers.

        Args:
            path: the path of the list below /api/v1.
            kind: the type of the items. The items are not checked.
            page_items: the most items of a page.
            query: parameters of the query. None and [] are left out. A list repeats the parameter.
        """
        items: Iterator[Any] = self.items(path, None, page_items=page_items, **query)
        return items

    def post(self, path: str, body: object = None, key: str | None = None) -> Any:
        """Send a POST request, and return the parsed answer.

        A random idempotency key makes retries take effect once.

        Args:
            path: the path below /api/v1.
            body: the JSON body. None is sent as `{}`.
            key: an idempotency key. Requests of other processes with this key and body also take
                effect once.
        """
        return self._mutate("POST", path, {} if body is None else body, key)

    def patch(self, path: str, body: object) -> Any:
        """Send a PATCH request with a random idempotency key, and return the parsed answer.

        Args:
            path: the path below /api/v1.
            body: the JSON body.
        """
        return self._mutate("PATCH", path, body)

    def put(self, path: str, body: object) -> Any:
        """Send a PUT request with a random idempotency key, and return the parsed answer.

        Args:
            path: the path below /api/v1.
            body: the JSON body.
        """
        return self._mutate("PUT", path, body)

    def delete(self, path: str, **query: object) -> Any:
        """Send a DELETE request with a random idempotency key, and return the parsed answer.

        Args:
            path: the path below /api/v1.
            query: parameters of the query. None and [] are left out. A list repeats the parameter.
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
        if self.traceparent:
            # Google's front of Cloud Run replaces the standard header.
            headers["traceparent"] = headers["x-detcloud-traceparent"] = self.traceparent
        return self.http.request(method, f"{API}{path}", body, headers)
