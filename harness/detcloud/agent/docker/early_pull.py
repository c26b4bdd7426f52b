"""The pull of an image before a trial is assigned, for the first trial of a new machine.

The cluster names the image in its answer to the enrolment. The image is only a guess. Therefore no
failure here fails a trial, and a trial with another image stops the pull. The cluster issues the
login of the ordinary pull for the guessed image.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from detcloud.agent.assignment.assignment import LaunchImpossible
from detcloud.agent.docker.engine import EngineError, EngineUnavailable
from detcloud.agent.docker.images import ImageRequest, PullFailed, PullStopped
from detcloud.shared.http import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from detcloud.agent.docker.image_cache import ImageCache
    from detcloud.agent.runtime import LoginIssuer

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
        self._issue_login: LoginIssuer | None = None
        self._failure = ""
        # Set by a trial that waits for the pull. Another first trial stops the pull.
        self._is_claimed = False
        self._is_wanted = True
        self._thread: threading.Thread | None = None
        self._write_notice: Callable[[str], None] | None = None

    def begin(self, name: str, issue_login: LoginIssuer | None = None) -> None:
        """Pull an image in a thread. Do nothing after a trial or another pull.

        `issue_login` fetches the login, or None for a pull without a login.
        """
        with self._changing:
            if self._thread is None and self._is_wanted:
                self._name, self._issue_login = name, issue_login
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

    def take_failure(self, name: str) -> str:
        """Return why the early pull of this image failed, and forget the failure.

        Return "" without a failed pull of this image, and for later trials.
        """
        with self._changing:
            if self._name != name:
                return ""
            failure, self._failure = self._failure, ""
            return failure

    def _pull(self) -> None:
        assert self._name is not None
        issue_login = None if self._issue_login is None else self._fetch_login
        request = ImageRequest(self._name, issue_login=issue_login)
        try:
            self._images.obtain_image(request, lambda: self._is_wanted, self._write_line)
        except PullStopped:
            self._log_line(f"the pull of image {self._name} was stopped: a trial needs another")
        except (LaunchImpossible, PullFailed, EngineError, EngineUnavailable, OSError) as error:
            self._failure = str(error)
            self._log_line(f"no image was pulled before the first trial: {error}")

    def _fetch_login(self, image: str) -> Mapping[str, str] | None:
        """Fetch the login of the pull.

        Raise LaunchImpossible if the cluster refuses, so that a waiting trial is not delayed by
        further attempts. Raise OSError or ApiError if the cluster does not answer or fails.
        """
        assert self._issue_login is not None
        try:
            return self._issue_login(image)
        except ApiError as error:
            if error.is_transient:
                raise
            text = f"the cluster issues no login for image {image}: {error}"
            raise LaunchImpossible(text) from error

    def _write_line(self, text: str) -> None:
        self._log_line(text)
        write_notice = self._write_notice
        if write_notice is not None:
            write_notice(text)
