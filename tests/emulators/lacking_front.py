"""A front of a store of any service that lacks an optional feature of the protocol."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from tests.emulators.http_server import serve_requests
from tests.emulators.passing_front import Answer, PassingHandler


class Feature(StrEnum):
    """Optional features of stores."""

    CHECKSUMS = "checksums"
    RANGES = "ranges"
    CONDITIONS = "conditional writes"
    MATCHES = "conditional reads"
    UPLOAD_LISTS = "lists of uploads"
    JOINS = "joins"


class MissingFeature(StrEnum):
    """The reaction to a request with the missing feature: a refusal, or an answer as if the feature
    were absent.
    """

    REFUSES = "refuses"
    IGNORES = "ignores"


@dataclass
class FrontRequest:
    """A request: method, path, query, body, and headers with lowercase names."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def target(self) -> str:
        """The path with the query."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    def drop(self, names: str) -> bool:
        """Leave out the headers and parameters that a pattern matches, and return whether any."""
        headers = [name for name in self.headers if re.fullmatch(names, name)]
        parameters = [name for name in self.query if re.fullmatch(names, name.lower())]
        for name in headers:
            del self.headers[name]
        for name in parameters:
            del self.query[name]
        return bool(headers or parameters)


Change = Callable[[FrontRequest, Answer], Answer]
"""Makes the front's answer of the store's."""


@dataclass
class LackingFront:
    """A front of the store at `store`.

    `names`: pattern for headers and parameters of the feature. `sign`: signs a changed request.
    `refusal`: the answer of a refusing front. `change`: changes answers. `method`: the only method
    that uses the feature, or "" for all methods. `met`: number of requests with the feature.
    """

    store: str
    names: str = "none"
    lack: MissingFeature = MissingFeature.IGNORES
    sign: Callable[[FrontRequest, str], None] = lambda asked, store: None
    refusal: Answer = (501, b"", {})
    change: Change = lambda asked, answer: answer
    method: str = ""
    url: str = ""
    met: int = field(default=0)


@contextmanager
def lacking_front(front: LackingFront) -> Iterator[LackingFront]:
    """Serve a front until the block ends, and set its `url`."""
    fields = {"store": front.store, "front": front}
    handler: Any = type("Handler", (_Handler,), fields)
    with serve_requests(handler) as address:
        front.url = handler.url = f"http://{address}"
        yield front


class _Handler(PassingHandler):
    front: LackingFront

    def handle_request(self, *, is_write: bool) -> None:
        body = self.read_body(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        asked = FrontRequest(self.command, parts.path, query, headers, body)
        path = self.path
        may_use = self.front.method in ("", self.command)
        if may_use and asked.drop(self.front.names):
            self.front.met += 1
            if self.front.lack is MissingFeature.REFUSES:
                self.answer(*self.front.refusal)
                return
            self.front.sign(asked, self.front.store)
            path = asked.target
        # Chunks of a body were put together.
        asked.headers["content-length"] = str(len(body))
        self.answer(*self.front.change(asked, self.ask_store(path, body, asked.headers)))


def sign_s3(access_key: str, secret_key: str, region: str) -> Callable[[FrontRequest, str], None]:
    """Return a function that signs a changed request to a store that speaks S3's protocol."""

    def sign(asked: FrontRequest, store: str) -> None:
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        asked.drop("authorization|x-amz-date|x-amz-content-sha256|x-amz-(?!meta|checksum).*")
        asked.headers["host"] = urlsplit(store).netloc
        request = AWSRequest(
            asked.method, store + asked.target, dict(asked.headers), asked.body or None
        )
        # Hop-by-hop headers are not part of a signature.
        for name in ("connection", "accept-encoding", "user-agent", "expect"):
            del request.headers[name]
        S3SigV4Auth(Credentials(access_key, secret_key), "s3", region).add_auth(request)
        signed = ("authorization", "x-amz-date", "x-amz-content-sha256")
        asked.headers.update({name: request.headers[name] for name in signed})

    return sign


def sign_azure(account: str, key: str) -> Callable[[FrontRequest, str], None]:
    """Return a function that signs a changed request to Azure."""

    def sign(request: FrontRequest, store: str) -> None:
        from azure.storage.blob import (
            AccountSasPermissions,
            ResourceTypes,
            generate_account_sas,
        )

        request.headers.pop("authorization", None)
        if "sig" not in request.query:
            names = ("read", "write", "delete", "list", "add", "create")
            signature = generate_account_sas(
                account,
                key,
                ResourceTypes(service=True, container=True, object=True),
                AccountSasPermissions(**dict.fromkeys(names, True)),
                datetime.now(UTC) + timedelta(hours=1),
            )
            request.query.update(parse_qsl(signature))

    return sign


def s3_refusal(status: int, code: str) -> Answer:
    """The answer of a store that speaks S3's protocol."""
    text = f"<Error><Code>{code}</Code><Message>A header is not known</Message></Error>"
    return status, text.encode(), {"Content-Type": "application/xml"}


def azure_refusal(status: int, code: str) -> Answer:
    """The answer of a store that speaks Azure's protocol."""
    _, content, headers = s3_refusal(status, code)
    return status, content, {**headers, "x-ms-error-code": code}


def gcs_refusal(status: int) -> Answer:
    """The answer of a store that speaks Google's protocol."""
    error = {"code": status, "message": "not implemented"}
    return status, json.dumps({"error": error}).encode(), {"Content-Type": "application/json"}


def hdfs_refusal() -> Answer:
    """The answer of a gateway that does not know an operation."""
    error = {"exception": "UnsupportedOperationException", "message": "not supported"}
    content = json.dumps({"RemoteException": error}).encode()
    return 400, content, {"Content-Type": "application/json"}


def change_headers(changes: Mapping[str, str | None]) -> Change:
    """Return a change of answers that sets headers, and removes headers with the value None."""

    def change(request: FrontRequest, answer: Answer) -> Answer:
        status, content, headers = answer
        left = {name: value for name, value in headers.items() if name.lower() not in changes}
        added = {name: value for name, value in changes.items() if value is not None}
        return status, content, {**left, **added}

    return change
