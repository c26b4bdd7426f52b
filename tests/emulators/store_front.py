"""Fronts of a Cloud Storage: what comes is looked at and then passed on to the store behind."""

import json
import re
import urllib.error
import urllib.request
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.emulators.forwarding import ForwardingHandler
from tests.patience import ANSWER_SECONDS_MAX

_OBJECTS = re.compile(r"(?:/upload|/download)?/storage/v1/b/([^/]+)/o(?:/(.+))?")


class StoreFront(ForwardingHandler):
    """One connection of a front of the store at `store`, which passes on all that comes."""

    def do_GET(self) -> None:
        self.handle_request(None)

    def do_DELETE(self) -> None:
        self.handle_request(None)

    def do_POST(self) -> None:
        self.handle_request(self.read_body())

    def do_PUT(self) -> None:
        self.handle_request(self.read_body())

    def do_PATCH(self) -> None:
        self.handle_request(self.read_body())

    def handle_request(self, body: bytes | None) -> None:
        """Answer a request with its content, None for a method that has none."""
        self.forward(body)

    def is_there(self, bucket: str, name: str) -> bool:
        """Whether the store has an object."""
        place = f"{self.store}/storage/v1/b/{bucket}/o/{quote(name, safe='')}"
        try:
            urllib.request.urlopen(place, timeout=ANSWER_SECONDS_MAX).close()
        except urllib.error.HTTPError as error:
            error.close()
            return False
        return True


def asked_action(method: str, target: str, body: bytes | None) -> tuple[str, str, str]:
    """Return the action of a request, its bucket, and its object or prefix. Those that are not to
    the JSON API are of signed URLs and of machines, which name the bucket first.
    """
    parts = urlsplit(target)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    if about := re.fullmatch(r"/storage/v1/b/([^/]+)", parts.path):
        return "get the bucket", about[1], ""
    match = _OBJECTS.fullmatch(parts.path)
    if match is None:
        assert not parts.path.startswith("/storage/"), f"{method} {target} is not known here"
        bucket, _, name = parts.path.removeprefix("/").partition("/")
        return {"GET": "get", "PUT": "create"}[method], bucket, unquote(name)
    bucket, name = match[1], unquote(match[2] or "")
    if parts.path.startswith("/upload/"):
        return "create", bucket, query.get("name") or _uploaded_name(body or b"")
    if method == "GET":
        return ("get", bucket, name) if name else ("list", bucket, query.get("prefix", ""))
    return {"DELETE": "delete"}.get(method, "update"), bucket, name


def _uploaded_name(body: bytes) -> str:
    """The name in the properties that an upload begins with."""
    found = re.search(rb'"name": ?"((?:[^"\\]|\\.)*)"', body)
    return "" if found is None else str(json.loads(b'"' + found[1] + b'"'))
