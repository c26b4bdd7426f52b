"""The images that this agent has pulled. When the disk fills up, the least recently used ones go.

The agent never removes images that it has not pulled itself.
"""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from detcloud.agent.docker.engine import EngineError, EngineUnavailable
from detcloud.agent.docker.images import ATTEMPTS_MAX, obtain_image
from detcloud.shared.files import read_json_object, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable

    from detcloud.agent.docker.engine import EngineClient
    from detcloud.agent.docker.images import Image, ImageRequest

DISK_SHARE_MAX = 0.85
# The time for which a used image is kept, because a launch may wait for the engine before its
# container protects the image.
KEPT_SECONDS = 900.0


class ImageCache:
    """The images that this agent has pulled, with their last uses, recorded in the file `record`.

    The constructor reads an existing record.

    Args:
        engine: the container engine.
        record: the file with the last uses.
        log_line: writes to the agent's log.
        disk_share_max: the used share of the engine's disk above which images are removed.
        attempts_max: the limit on attempts to pull an image.
        sleep: pauses between attempts for a number of seconds.
    """

    def __init__(
        self,
        engine: EngineClient,
        record: Path,
        log_line: Callable[[str], None],
        *,
        disk_share_max: float = DISK_SHARE_MAX,
        attempts_max: int = ATTEMPTS_MAX,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._engine = engine
        self._record = record
        self._log_line = log_line
        self._disk_share_max = disk_share_max
        self._attempts_max = attempts_max
        self._sleep = sleep
        self._lock = threading.Lock()
        self._used_at: dict[str, float] = read_json_object(record) or {}

    def obtain_image(
        self,
        request: ImageRequest,
        is_needed: Callable[[], bool],
        write_notice: Callable[[str], None],
    ) -> Image:
        """Return the requested image, which is pulled if missing or if `force_pull` is set.

        First record the use of an image that this agent has pulled. If the disk is nearly full,
        remove the least recently used images. Failures of these steps are ignored. Afterwards
        record a newly pulled image.

        Args:
            request: the request.
            is_needed: returns False once the trial was killed.
            write_notice: writes a line to the trial's log.

        Raises:
            LaunchImpossible: the registry refuses the image or the login.
            PullFailed: all attempts failed.
            PullStopped: `is_needed` returned False.
        """
        with self._lock, suppress(EngineUnavailable, EngineError, OSError):
            present = self._engine.find_image(request.name)
            if present and present["Id"] in self._used_at:
                self._record_use(present["Id"])
            self._make_room()
        image = obtain_image(
            self._engine,
            request,
            is_needed,
            write_notice,
            attempts_max=self._attempts_max,
            sleep=self._sleep,
        )
        if image.is_new:
            with self._lock:
                self._record_use(image.id)
        return image

    def _record_use(self, image: str) -> None:
        self._used_at[image] = time.time()
        write_atomically(self._record, self._used_at)

    def _make_room(self) -> None:
        oldest_first = sorted(self._used_at, key=lambda image: self._used_at[image])
        for image in oldest_first:
            disk = shutil.disk_usage(self._engine.root_folder())
            is_young = time.time() - self._used_at[image] < KEPT_SECONDS
            if is_young or disk.used / disk.total < self._disk_share_max:
                return
            # The engine keeps images that a container uses or that have several names.
            if self._engine.remove_image(image):
                self._log_line(
                    f"the disk of the container engine fills up: image {image} was removed"
                )
                del self._used_at[image]
                write_atomically(self._record, self._used_at)
