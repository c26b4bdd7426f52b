"""The images that this agent pulled: when the engine's disk fills up, those go first that no trial
has begun with for the longest time.

Images that were on the machine before, or came there otherwise, are not the agent's to remove.
"""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from detcloud.agent.directory import read_object, write_atomically
from detcloud.agent.docker_api import EngineAway, EngineRefused
from detcloud.agent.images import obtained

if TYPE_CHECKING:
    from collections.abc import Callable

    from detcloud.agent.docker_api import Engine
    from detcloud.agent.images import Image, ImageAsked

DISK_SHARE_MAX = 0.85
# A launch may wait for its engine so long before its container holds the image.
KEPT_SECONDS = 900.0


class PulledImages:
    """Remembers them in the file `record`."""

    def __init__(self, engine: Engine, record: Path, say: Callable[[str], None]) -> None:
        self._engine = engine
        self._record = record
        self._say = say
        self._lock = threading.Lock()
        self._used_at: dict[str, float] = read_object(record) or {}

    def obtained(
        self, asked: ImageAsked, wanted: Callable[[], bool], tell: Callable[[str], None]
    ) -> Image:
        """See images.obtained. Makes room first, if there is little."""
        with self._lock, suppress(EngineAway, EngineRefused, OSError):
            found = self._engine.image(asked.name)
            if found and found["Id"] in self._used_at:
                self._note(found["Id"])
            self._make_room()
        image = obtained(self._engine, asked, wanted, tell)
        if image.is_new:
            with self._lock:
                self._note(image.id)
        return image

    def _note(self, image: str) -> None:
        self._used_at[image] = time.time()
        write_atomically(self._record, self._used_at)

    def _make_room(self) -> None:
        oldest_first = sorted(self._used_at, key=lambda it: self._used_at[it])
        for image in oldest_first:
            disk = shutil.disk_usage(self._engine.folder())
            is_young = time.time() - self._used_at[image] < KEPT_SECONDS
            if is_young or disk.used / disk.total < DISK_SHARE_MAX:
                return
            # The engine keeps what a container has, or what has another name, too.
            if self._engine.remove_image(image):
                self._say(f"the disk of the container engine fills up: image {image} was removed")
                del self._used_at[image]
                write_atomically(self._record, self._used_at)
