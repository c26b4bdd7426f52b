"""Requests to Cloud Storage: the requested action of each."""

import json
import re
from urllib.parse import parse_qs, unquote, urlsplit

_OBJECTS = re.compile(r"(?:/upload|/download)?/storage/v1/b/([^/]+)/o(?:/(.+))?")


def asked_action(method: str, target: str, body: bytes | None) -> tuple[str, str, str]:
    """Return (action, bucket, object or prefix) of a request.

    Requests outside the JSON API come from signed URLs and machines, and begin with the bucket.
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
    match = re.search(rb'"name": ?"((?:[^"\\]|\\.)*)"', body)
    return "" if match is None else str(json.loads(b'"' + match[1] + b'"'))
