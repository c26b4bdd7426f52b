"""The lines before the first byte of SSH, with which the ends of a connection exchange keys.

The user's end sends a line with its public key. The end in the allocation answers with lines: any
number of notices, then its host key or an error. The lines pass only through the encrypted session
of a tunnel. So each end knows the other's key, and nobody is asked whether to trust a key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from detcloud.shared.errors import DetcloudError

LINE_BYTES_MAX = 4_096
TEXT_CHARACTERS_MAX = 2_000
NOTICES_MAX = 16
_ED25519 = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]{68}")
"""A public key without a comment. The 51 bytes of the key become 68 characters of base64."""


class GreetingFailed(DetcloudError):
    """The other end sent an error or an invalid greeting. The message is for the user."""


def public_key_of(text: str) -> str:
    """Return a public key of OpenSSH without the comment.

    Raises:
        ValueError: the text begins with no Ed25519 key.
    """
    key = " ".join(text.split()[:2])
    if not _ED25519.fullmatch(key):
        raise ValueError("expected an Ed25519 key of OpenSSH, `ssh-ed25519 BASE64`")
    return key


def encode_request(public_key: str) -> bytes:
    """Return the first line of the user's end."""
    return _encode({"public_key": public_key})


def read_request(receive: Callable[[int], bytes]) -> str:
    """Read the first line of the user's end, and return the public key.

    Args:
        receive: returns at most a number of received bytes, and b"" at the end.

    Raises:
        GreetingFailed: the line is invalid, too long or incomplete.
    """
    return _key_of(_read_object(receive), "public_key")


def encode_notice(text: str) -> bytes:
    """Return a line with a sentence for the user, before the host key."""
    return _encode({"notice": text[:TEXT_CHARACTERS_MAX]})


def encode_error(text: str) -> bytes:
    """Return the last line of a connection that cannot be served. `text` names a remedy."""
    return _encode({"error": text[:TEXT_CHARACTERS_MAX]})


def encode_host_key(public_key: str) -> bytes:
    """Return the last line before the first byte of SSH."""
    return _encode({"host_key": public_key})


def read_answer(receive: Callable[[int], bytes], report: Callable[[str], None]) -> str:
    """Read the answer of the end in the allocation, and return the public host key.

    Args:
        receive: returns at most a number of received bytes, and b"" at the end.
        report: called with each notice.

    Raises:
        GreetingFailed: the answer is an error, is invalid, or ends too early.
    """
    for _ in range(NOTICES_MAX):
        answer = _read_object(receive)
        if "notice" not in answer:
            break
        report(str(answer["notice"]))
    if "error" in answer:
        raise GreetingFailed(str(answer["error"]))
    return _key_of(answer, "host_key")


def _encode(fields: dict[str, str]) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def _read_object(receive: Callable[[int], bytes]) -> dict[str, Any]:
    """Read a line with a JSON object, byte by byte, because the next byte may belong to SSH.

    Raise GreetingFailed for other lines and at the end.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        received = receive(1)
        if not received or len(line) >= LINE_BYTES_MAX:
            raise GreetingFailed(
                "the connection ended before the keys were exchanged; the agent's log may have the "
                "reason"
            )
        line += received
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise GreetingFailed("the other end did not send its key, but another line")
    return fields


def _key_of(fields: dict[str, Any], name: str) -> str:
    try:
        return public_key_of(str(fields.get(name)))
    except ValueError as error:
        raise GreetingFailed(f"the other end sent an invalid key: {error}") from None
