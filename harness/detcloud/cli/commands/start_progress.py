"""The line that shows why a new notebook, shell or experiment does not run yet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from detcloud.cli.rendering.job_sentences import length_text
from detcloud.cli.rendering.progress import Progress
from detcloud.cli.rendering.terminal import is_live, sanitize
from detcloud.shared.http import ApiError

if TYPE_CHECKING:
    from detcloud.client import Experiment, Trial
    from detcloud.client.records import Activity

ACTIVITY_SECONDS = 5.0
"""The pause between requests for the reason of a wait."""
QUIET_SECONDS = 5.0
"""The time before the first sentence in a file or pipe. A free slot is assigned earlier."""
NOT_FOUND = 404
_STARTS = {
    "PULLING": "starts: its machine fetches the code and the image",
    "STARTING": "starts: its machine prepares the environment",
    "RUNNING": "runs, and its program prepares itself",
    "TERMINATING": "stops",
}


class StartProgress:
    """Shows the reason of a wait: as a line on a live terminal, otherwise each new reason once.

    A context manager, which erases the line.
    """

    def __init__(
        self,
        run: Experiment,
        kind: str,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Show nothing yet.

        Args:
            run: the run that the user waits for.
            kind: the word for the run, such as `shell`.
            clock: returns seconds that never decrease.
            now_ms: returns the time in epoch ms.
        """
        self._run = run
        self._subject = f"{kind} {run.id}"
        self._clock, self._now_ms = clock, now_ms
        self._progress = Progress(self._subject, clock=clock)
        self._is_live = is_live(sys.stderr)
        self._begun_at = clock()
        self._asked_at: float | None = None
        self._activity: Activity | None = None
        self._printed = ""

    def __enter__(self) -> StartProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.close()

    def show(self, trial: Trial | None) -> None:
        """Show the present state of the start. The reason is fetched every ACTIVITY_SECONDS.

        Args:
            trial: the run's trial with present fields, or None before the cluster has created it.

        Raises:
            DetcloudError: a request failed.
        """
        allocation = None if trial is None else trial.data.get("allocation")
        if allocation is not None:
            self._activity, self._asked_at = None, None
            text = _STARTS.get(str(allocation["state"]), "starts")
            self._show(text, text)
            return
        now = self._clock()
        if self._asked_at is None or now - self._asked_at >= ACTIVITY_SECONDS:
            self._asked_at, self._activity = now, self._read_activity()
        reason = sanitize(self._reason())
        text = f"waits: {reason}" if reason else "waits for a slot"
        self._show(f"{text}{self._start_text()}", text)

    def _show(self, line: str, sentence: str) -> None:
        """Draw `line` on a live terminal. Otherwise print `sentence` if it is new, after a while.

        `sentence` has no times, so that a file gets few lines.
        """
        if self._is_live:
            self._progress.show_wait(f"{line};")
            return
        if self._clock() - self._begun_at >= QUIET_SECONDS and sentence != self._printed:
            self._printed = sentence
            print(f"{self._subject} {sentence}", file=sys.stderr, flush=True)

    def _read_activity(self) -> Activity | None:
        """Fetch the reason of the wait. Return None from a cluster without such an answer."""
        try:
            return self._run.activity()
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            return None

    def _reason(self) -> str:
        return "" if self._activity is None else self._activity["reason"].removeprefix("waits: ")

    def _start_text(self) -> str:
        """Return the expected start as a part of a sentence. "" if the start is unknown."""
        start_ms = None if self._activity is None else self._activity["expected_start_ms"]
        if start_ms is None:
            return ""
        left_ms = start_ms - self._now_ms()
        when = "now" if left_ms < 500 else f"in {length_text(left_ms)}"
        return f"; start expected {when}"
