"""Google's functions-framework on this machine, started by its command line.

The framework has a separate environment beside the environment of the tests, because the framework
changes the start of every Python.
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
    """An event in the form that the framework passes to a function."""

    attributes: Mapping[str, Any]
    data: bytes | None


@dataclass(frozen=True)
class EventFunction:
    """A function of events at `url` that appends events to `file`."""

    url: str
    file: Path

    def events(self) -> list[HandedEvent]:
        """Return the received events in order."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [
            HandedEvent(item["attributes"], item["data"] and base64.b64decode(item["data"]))
            for item in map(json.loads, lines)
        ]


@contextmanager
def event_function(folder: Path) -> Iterator[EventFunction]:
    """Serve a function of events in the framework's environment, with files in `folder`."""
    url, file = _free_url(), folder / "events.jsonl"
    options = ["--signature-type", "cloudevent", *_arguments("events.py", "note_event", url)]
    # The environment has no code of detcloud, so that the framework runs alone.
    environment = {"EVENTS": str(file), "PYTHONPATH": ""}
    with serving([_find_program(), *options], url, folder / "events.log", environment):
        yield EventFunction(url, file)


@contextmanager
def tick_function(folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Serve the tick by the framework's ASGI server and yield the URL.

    The framework's packages are on the path without the changes to Python's start.
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
