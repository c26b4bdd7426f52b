"""A server that checks the rules of GitHub's API for the statuses of commits.

The rules are those of "Create a commit status" in GitHub's REST documentation: the path, the login,
the headers, the states, and the limits of description and context.
"""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

STATES = {"error", "failure", "pending", "success"}
_PATH = re.compile(r"/repos/(?P<repository>[^/]+/[^/]+)(/statuses/(?P<sha>[^/]+))?")


@dataclass
class GitHub:
    """The repositories of the server, and their statuses."""

    token: str
    """The token of which requests need one."""
    commits: dict[str, set[str]]
    """The commits of each repository."""
    url: str = ""
    """The URL of the API."""
    statuses: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """The commit and the body of each accepted status, in order."""
    refusals: list[tuple[int, str]] = field(default_factory=list)
    """The status and the message of each refused request."""

    def answer(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, Any]]:
        """Return the status and the JSON of the answer to a request."""
        status, answer = self._answer(method, path, headers, body)
        if status >= 300:
            self.refusals.append((status, answer["message"]))
        return status, answer

    def _answer(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, Any]]:
        if not headers.get("user-agent"):
            return 403, {"message": "Request forbidden by administrative rules."}
        if headers.get("authorization") != f"Bearer {self.token}":
            return 401, {"message": "Bad credentials"}
        if headers.get("x-github-api-version") not in (None, "2022-11-28"):
            return 400, {"message": "Unsupported API version"}
        if headers.get("accept") not in ("application/vnd.github+json", "*/*"):
            return 415, {"message": "Unsupported 'Accept' header"}
        found = _PATH.fullmatch(path)
        if found is None or found["repository"] not in self.commits:
            return 404, {"message": "Not Found"}
        if method == "GET" and found["sha"] is None:
            return 200, {"full_name": found["repository"]}
        if method != "POST" or found["sha"] is None:
            return 404, {"message": "Not Found"}
        return self._create(found["repository"], found["sha"], body)

    def _create(self, repository: str, sha: str, body: bytes) -> tuple[int, dict[str, Any]]:
        try:
            status = json.loads(body)
        except ValueError:
            return 400, {"message": "Problems parsing JSON"}
        problems = [
            "state is not included in the list" if status.get("state") not in STATES else "",
            "description is too long" if len(status.get("description") or "") > 140 else "",
            "context is too long" if len(status.get("context") or "") > 255 else "",
        ]
        texts = f"{status.get('description')}{status.get('context')}"
        if any(letter > "\uffff" for letter in texts):
            problems.append("4-byte Unicode is not accepted")
        url = status.get("target_url")
        if url is not None and urlsplit(url).scheme not in ("http", "https"):
            problems.append("target_url must use http(s) scheme")
        if set(status) - {"state", "target_url", "description", "context"}:
            problems.append("unknown field")
        if sha not in self.commits[repository]:
            problems.append(f"No commit found for SHA: {sha}")
        if any(problems):
            return 422, {"message": "; ".join(filter(None, problems))}
        self.statuses.append((sha, status))
        return 201, {"state": status["state"]}


@contextmanager
def run_github(token: str, commits: dict[str, set[str]]) -> Iterator[GitHub]:
    """Run the server on a port of this machine."""
    lock = threading.Lock()
    github = GitHub(token, commits)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self._respond("POST")

        def do_GET(self) -> None:
            self._respond("GET")

        def _respond(self, method: str) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            named = {name.lower(): value for name, value in self.headers.items()}
            with lock:
                status, answer = github.answer(method, self.path, named, body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    github.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield github
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
