"""The pull of an image before a trial is assigned, for the first trial of a new machine.

The cluster names the image in its answer to the enrolment. The image is only a guess. Therefore no
failure here fails a trial, and a trial with another image stops the pull.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from detcloud.agent.assignment.assignment import LaunchImpossible
from detcloud.agent.docker.engine import EngineError, EngineUnavailable
from detcloud.agent.docker.images import ImageRequest, PullFailed, PullStopped

if TYPE_CHECKING:
    from collections.abc import Callable

    from detcloud.agent.docker.image_cache import ImageCache

CHECK_SECONDS = 0.2


class EarlyPull:
    """At most one pull of an image before the first trial. Several threads may use the object.

    `images` are the agent's images. `log_line` writes to the agent's log.
    """

    def __init__(self, images: ImageCache, log_line: Callable[[str], None]) -> None:
        self._images = images
        self._log_line = log_line
        self._changing = threading.Lock()
        self._name: str | None = None
        # Set by a trial that waits for the pull. Another first trial stops the pull.
        self._is_claimed = False
        self._is_wanted = True
        self._thread: threading.Thread | None = None
        self._write_notice: Callable[[str], None] | None = None

    def begin(self, name: str) -> None:
        """Pull an image in a thread, without a login. Do nothing after a trial or another pull."""
        with self._changing:
            if self._thread is None and self._is_wanted:
                self._name = name
                self._thread = threading.Thread(target=self._pull, name="early pull", daemon=True)
                self._thread.start()

    def await_image(
        self, name: str, is_needed: Callable[[], bool], write_notice: Callable[[str], None]
    ) -> float:
        """Wait for the end of an early pull of this image, and return the seconds of waiting.

        Stop an early pull of another image, unless an earlier trial waited for it. No later early
        pull begins. Return at once without an early pull, and soon after `is_needed` returns False.
        Write the progress to the trial's log by `write_notice`. Raise nothing: whether the image is
        present, the caller must find out.
        """
        with self._changing:
            thread, is_same = self._thread, self._name == name
            if is_same:
                self._is_claimed, self._write_notice = True, write_notice
            elif not self._is_claimed:
                self._is_wanted = False
        if thread is None or not is_same or not thread.is_alive():
            return 0.0
        write_notice(f"image {name} has been pulled since the start of this machine's agent")
        began = time.monotonic()
        while thread.is_alive() and is_needed():
            thread.join(CHECK_SECONDS)
        return time.monotonic() - began

    def _pull(self) -> None:
        assert self._name is not None
        try:
            self._images.obtain_image(
                ImageRequest(self._name), lambda: self._is_wanted, self._write_line
            )
        except PullStopped:
            self._log_line(f"the pull of image {self._name} was stopped: a trial needs another")
        except (LaunchImpossible, PullFailed, EngineError, EngineUnavailable, OSError) as error:
            self._log_line(f"no image was pulled before the first trial: {error}")

    def _write_line(self, text: str) -> None:
        self._log_line(text)
        write_notice = self._write_notice
        if write_notice is not None:
            write_notice(text)
