"""Requests of a client with a signed URL and without credentials."""

from http.client import HTTPConnection
from urllib.parse import urlsplit

from control_plane.objects.store import SignedUrl
from tests.patience import ANSWER_SECONDS_MAX


def send(signed: SignedUrl, body: bytes) -> tuple[int, bytes]:
    """Send the request with its headers and a body, and return the answer's status and body.

    The length header is the body's length, even if a different length was signed, because a longer
    body would be cut off.
    """
    parts = urlsplit(signed.url)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_SECONDS_MAX)
    headers = dict(signed.headers)
    if signed.method == "PUT":
        headers["Content-Length"] = str(len(body))
    try:
        connection.request(signed.method, f"{parts.path}?{parts.query}", body or None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
