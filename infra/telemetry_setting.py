"""The setting `telemetry` of a stack: the OpenTelemetry collector of the functions. Pure.

The address is a variable of all functions. The headers may contain a key, and clouds show the
variables of a function to everybody who may read the function. The headers are therefore an object
of the cluster's bucket, and only the tick has the digest of the object.
"""

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from control_plane.telemetry.endpoint import ENDPOINT
from lambdas.collector_headers import DIGEST_VARIABLE

SECRETS: Final = frozenset({"telemetry"})
"""Settings that messages must not quote."""
EXPECTED: Final = (
    'a map like {"endpoint": "https://otlp.example.com", "headers": {"authorization": "..."}}; '
    "the endpoint has no login, and headers need https"
)
HEADERS_MAX: Final = 20
CHARACTERS_MAX: Final = 4096
# RFC 9110: names are tokens, and values are visible characters with spaces inside.
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_VALUE: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")


@dataclass(frozen=True)
class Collector:
    """An OpenTelemetry collector that receives OTLP over HTTP."""

    endpoint: str
    """The base address, to which the exporters append `/v1/traces` and `/v1/metrics`."""
    headers: str = field(default="", repr=False)
    """The headers of all requests as a JSON object; "" without headers."""
    headers_sha256: str = ""
    """The SHA-256 of `headers` in hexadecimal; "" without headers."""

    @property
    def common_variables(self) -> dict[str, str]:
        """The environment variables of all functions."""
        return {ENDPOINT: self.endpoint}

    @property
    def tick_variables(self) -> dict[str, str]:
        """The environment variables of the tick, in addition to `common_variables`."""
        return {DIGEST_VARIABLE: self.headers_sha256} if self.headers else {}


def decode_telemetry(text: str) -> Collector:
    """Return the collector that a JSON text describes. Raise ValueError as `parse_telemetry`."""
    try:
        return parse_telemetry(json.loads(text))
    except ValueError:
        raise ValueError(EXPECTED) from None


def parse_telemetry(given: object) -> Collector:
    """Return the collector that a map describes.

    Raise ValueError(EXPECTED) for any other value. The message does not quote the value.
    """
    if not isinstance(given, dict) or not {"endpoint"} <= set(given) <= {"endpoint", "headers"}:
        raise ValueError(EXPECTED)
    endpoint, headers = given["endpoint"], given.get("headers", {})
    if not _is_address(endpoint) or not _are_headers(headers):
        raise ValueError(EXPECTED)
    if not headers:
        return Collector(endpoint)
    # A key must not cross a network in plain text.
    if not endpoint.startswith(("https://", "http://127.0.0.1:")):
        raise ValueError(EXPECTED)
    text = json.dumps(headers, sort_keys=True)
    return Collector(endpoint, text, hashlib.sha256(text.encode()).hexdigest())


def _is_address(endpoint: object) -> bool:
    """Return whether a value is the address of a collector: no login, no query, no fragment."""
    if not isinstance(endpoint, str) or not re.fullmatch(r"https?://[\x21-\x7e]{1,500}", endpoint):
        return False
    try:
        parts = urlsplit(endpoint)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return has_host and "@" not in parts.netloc and not parts.query and not parts.fragment


def _are_headers(headers: Any) -> bool:
    """Return whether a value is a map of at most HEADERS_MAX valid headers."""
    if not isinstance(headers, dict) or len(headers) > HEADERS_MAX:
        return False
    texts = [text for header in headers.items() for text in header]
    if not all(isinstance(text, str) and len(text) <= CHARACTERS_MAX for text in texts):
        return False
    return all(_NAME.fullmatch(name) and _VALUE.fullmatch(text) for name, text in headers.items())
