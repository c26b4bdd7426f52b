"""A proxy of fake-gcs-server with resumable uploads like Google Cloud Storage.

The emulator takes a status query as the end of the upload, stores repeated parts twice, and
compares no digests.
"""

import base64
import hashlib
import json
import re
import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.forwarding import ForwardingHandler

# An interrupted request keeps a multiple of this size.
KEPT_BYTES = 256 * 1024
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


@dataclass
class Session:
    """A resumable upload: properties of the object, condition, and received content."""

    bucket: str
    properties: Mapping[str, Any]
    condition: str
    content: bytearray = field(default_factory=bytearray)


@contextmanager
def serve_sessions(store: FakeGcs) -> Iterator[FakeGcs]:
    """Serve the store with resumable uploads at a separate URL."""
    sessions: dict[str, Session] = {}
    handler = type("Handler", (_Handler,), {"store": store.url, "sessions": sessions})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield FakeGcs(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


class _Handler(ForwardingHandler):
    sessions: dict[str, Session]

    def do_POST(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        body = self.read_body()
        if query.get("uploadType") != "resumable":
            self.forward(body)
            return
        bucket = parts.path.split("/")[-2]
        properties = {"name": query.get("name"), **json.loads(body or b"{}")}
        upload = secrets.token_hex(16)
        self.sessions[upload] = Session(bucket, properties, query.get("ifGenerationMatch", ""))
        host = self.headers["Host"]
        place = f"http://{host}{parts.path}?uploadType=resumable&upload_id={upload}"
        self.answer(200, b"", {"Location": place})

    def do_PUT(self) -> None:
        upload = parse_qs(urlsplit(self.path).query).get("upload_id", [""])[0]
        if not upload:
            self.forward(self.read_body())
        elif (session := self.sessions.get(upload)) is None:
            self.read_body()
            self.answer(404, b"{}")
        else:
            self._receive(upload, session)

    def do_DELETE(self) -> None:
        upload = parse_qs(urlsplit(self.path).query).get("upload_id", [""])[0]
        if not upload:
            self.forward(None)
        elif self.sessions.pop(upload, None) is None:
            self.answer(404, b"{}")
        else:
            # Google's status for a session that the client closed.
            self.answer(499, b"")

    def _receive(self, upload: str, session: Session) -> None:
        expected = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(expected)
        content_range = self.headers.get("Content-Range", "")
        match = _RANGE.fullmatch(content_range)
        if match is None:
            assert content_range.startswith("bytes */"), (
                f"a range that the stand-in does not know: {content_range}"
            )
            self._answer_incomplete(session)
            return
        start, total = int(match[1]), match[3]
        if start > len(session.content):
            self.answer(400, b'{"error": {"message": "it begins behind what is there"}}')
            return
        if len(body) < expected:
            body = body[: len(body) // KEPT_BYTES * KEPT_BYTES]
        # Stored bytes are not replaced by repeated parts.
        session.content += body[len(session.content) - start :]
        # An upload of unknown length ends with the part that names the length.
        if total == "*" or len(session.content) < int(total):
            self._answer_incomplete(session)
        else:
            del self.sessions[upload]
            self._finish(session)

    def _answer_incomplete(self, session: Session) -> None:
        size = len(session.content)
        headers = {"Range": f"bytes=0-{size - 1}"} if size else {"X-Nothing": "there"}
        if self.headers.get("X-GUploader-No-308"):
            self.answer(200, b"", {**headers, "X-HTTP-Status-Code-Override": "308"})
        else:
            self.answer(308, b"", headers)

    def _finish(self, session: Session) -> None:
        content = bytes(session.content)
        digest = base64.b64encode(hashlib.md5(content).digest()).decode()
        if session.properties.get("md5Hash", digest) != digest:
            self.answer(400, b'{"error": {"message": "the MD5 of what came is another one"}}')
            return
        properties = json.dumps(dict(session.properties)).encode()
        frame = b"--part\r\nContent-Type: "
        body = frame + b"application/json\r\n\r\n" + properties + b"\r\n"
        body += frame + b"application/octet-stream\r\n\r\n" + content + b"\r\n--part--"
        name = quote(str(session.properties["name"]), safe="")
        target = f"/upload/storage/v1/b/{session.bucket}/o?uploadType=multipart&name={name}"
        if session.condition:
            target += f"&ifGenerationMatch={session.condition}"
        kind = {"Content-Type": "multipart/related; boundary=part"}
        self.answer(*self.ask_store("POST", target, body, kind))
