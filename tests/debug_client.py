"""A client of the Debug Adapter Protocol, which does what VS Code does to attach."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any, Self

from detcloud.launch.debugger_bridge import pack_message, read_message
from tests.patience import ANSWER_SECONDS_MAX


class DebugClient:
    """A client on a connected socket. A context manager that closes the connection."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(ANSWER_SECONDS_MAX)
        self._connection = connection
        self._stream = connection.makefile("rb")
        self._sent = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.close()
        self._connection.close()

    def attach(self, local: Path, remote: Path, breakpoints: dict[str, list[int]]) -> None:
        """Attach, set breakpoints by the name of a file in `local`, and let the program run."""
        self.request("initialize", adapterID="debugpy", clientID="test", pathFormat="path")
        mapping = {"localRoot": str(local), "remoteRoot": str(remote)}
        self.request("attach", pathMappings=[mapping], justMyCode=True)
        self.wait_for("initialized")
        for name, lines in breakpoints.items():
            source = {"path": str(local / name)}
            answer = self.request(
                "setBreakpoints", source=source, breakpoints=[{"line": line} for line in lines]
            )
            assert all(one["verified"] for one in answer["breakpoints"]), answer
        self.request("configurationDone")

    def wait_for_stop(self) -> int:
        """Wait until the program stops at a breakpoint, and return the thread."""
        stop = self.wait_for("stopped")
        assert stop["reason"] == "breakpoint", stop
        return int(stop["threadId"])

    def evaluate(self, thread: int, expression: str) -> str:
        """Return the value of an expression in the top frame of a stopped thread."""
        (frame,) = self.request("stackTrace", threadId=thread, levels=1)["stackFrames"]
        answer = self.request("evaluate", expression=expression, frameId=frame["id"])
        return str(answer["result"])

    def request(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a request, and return the body of the answer. Collect events meanwhile."""
        self._sent += 1
        message = {"seq": self._sent, "type": "request", "command": command, "arguments": arguments}
        self._connection.sendall(pack_message(message))
        while True:
            answer = self._read()
            if answer["type"] == "response" and answer["request_seq"] == self._sent:
                assert answer["success"], answer
                return dict(answer.get("body") or {})
            self.events.append(answer)

    def wait_for(self, event: str) -> dict[str, Any]:
        """Return the body of the next event of this name, and drop the event."""
        while True:
            for place, message in enumerate(self.events):
                if message.get("event") == event:
                    del self.events[place]
                    return dict(message.get("body") or {})
            self.events.append(self._read())

    def _read(self) -> dict[str, Any]:
        content = read_message(self._stream)
        assert content, f"the connection has ended after {self.events}"
        message: dict[str, Any] = json.loads(content.partition(b"\r\n\r\n")[2])
        return message
