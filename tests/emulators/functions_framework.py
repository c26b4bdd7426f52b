"""Google's functions-framework on this machine, run as its users run it, by its command line.

It is in an environment of its own, beside that of the tests: it changes how every Python of its
environment starts.
"""

import base64
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.emulators.server import free_port, require_program, serving

ROOT = Path(__file__).parents[2]
FUNCTIONS = Path(__file__).parent / "google_functions"
PROGRAM = "functions-framework"


@dataclass(frozen=True)
class HandedEvent:
    """An event as the framework hands it to a function."""

    attributes: Mapping[str, Any]
    data: bytes | None


@dataclass(frozen=True)
class EventFunction:
    """A function of events at `url`, which notes them in `file`."""

    url: str
    file: Path

    def events(self) -> list[HandedEvent]:
        """Return the events that it was handed, in their order."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [
            HandedEvent(item["attributes"], item["data"] and base64.b64decode(item["data"]))
            for item in map(json.loads, lines)
        ]


@contextmanager
def event_function(folder: Path) -> Iterator[EventFunction]:
    """Serve a function of events in the framework's own environment; its files are in `folder`."""
    url, file = _free_url(), folder / "events.jsonl"
    options = ["--signature-type", "cloudevent", *_arguments("events.py", "note_event", url)]
    # Nothing of ours is there, so that nothing of ours helps it.
    environment = {"EVENTS": str(file), "PYTHONPATH": ""}
    with serving([_find_program(), *options], url, folder / "events.log", environment):
        yield EventFunction(url, file)


@contextmanager
def tick_function(folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Serve the tick by the framework's ASGI server, at the URL that is the value. Its packages are
    found beside ours, without what they change at the start of Python.
    """
    url = _free_url()
    packages = next(_find_program().parents[1].glob("lib/python3*/site-packages"))
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "harness", packages)))
    command = [sys.executable, "-P", "-m", "functions_framework", "--asgi"]
    given = {**environment, "PYTHONPATH": paths}
    with serving([*command, *_arguments("tick.py", "tick", url)], url, folder / "tick.log", given):
        yield url


def _find_program() -> Path:
    beside = Path(f"{sys.prefix}-functions") / "bin" / PROGRAM
    return require_program(PROGRAM, beside)


def _arguments(file: str, target: str, url: str) -> list[str]:
    port = url.rpartition(":")[2]
    source = str(FUNCTIONS / file)
    return ["--source", source, "--target", target, "--host", "127.0.0.1", "--port", port]


def _free_url() -> str:
    return f"http://127.0.0.1:{free_port()}"
