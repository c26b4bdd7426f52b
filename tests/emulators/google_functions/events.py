"""A function of Google's functions-framework that appends each event as a line to the file in
EVENTS.
"""

import base64
import json
import os
from pathlib import Path
from typing import Any

import functions_framework


@functions_framework.cloud_event  # type: ignore[untyped-decorator]
def note_event(event: Any) -> None:
    """Append an event's attributes and its data in base64 to the file in EVENTS."""
    data = None if event.data is None else base64.b64encode(event.data).decode()
    line = json.dumps({"attributes": dict(event.get_attributes()), "data": data})
    with Path(os.environ["EVENTS"]).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
