"""Load failures: exceptions of training code while the code loads an undamaged checkpoint.

Only the checkpoint from which the run begins counts. Errors of detcloud do not count, since their
causes are stores, other processes and wrong calls.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from detcloud.core.checkpoint_reader import CAUSE_CHARACTERS_MAX
from detcloud.core.first_step import FirstStep
from detcloud.shared.errors import DetcloudError, InvalidHP
from detcloud.shared.trial_directory import CheckpointReference, Reporter

LOAD_FAILURE = "checkpoint_load_failure"
_OTHER_ERRORS = (DetcloudError, InvalidHP)


class LoadWatch:
    """Watches whether training code fails while loading the run's first checkpoint, `latest`.

    The code loads the checkpoint between `begin` and `end`, and in the blocks of `watch`.
    """

    def __init__(
        self,
        latest: CheckpointReference | None,
        report: Reporter,
        *,
        is_reporting: bool,
        first_step: FirstStep | None = None,
    ) -> None:
        """Create a watch of the checkpoint `latest`, or of nothing if `latest` is None.

        `report` appends a line to the trial's report file. Load failures are reported only if
        `is_reporting`, which is true on the chief of a trial on a cluster. `first_step` measures
        the loads.
        """
        self._first_step = first_step or FirstStep()
        self._latest = latest
        self._report = report
        self._is_reporting = is_reporting and latest is not None
        self._is_loading = False

    def begin(self) -> None:
        """Record that code begins to load the run's first checkpoint.

        Do nothing unless this watch reports load failures.
        """
        self._is_loading = self._is_reporting

    def end(self) -> None:
        """Record that the checkpoint is loaded."""
        self._is_loading = False

    def note_error(self, error: BaseException) -> None:
        """Report `error` as a load failure if the first checkpoint is being loaded, and print the
        failure.

        In any case, record that no checkpoint is being loaded now. At most one failure is reported
        in a run.
        DetcloudError, InvalidHP and exceptions that are no Exception, such as SystemExit, are not
        reported. If the report fails, print the reason and raise nothing.
        """
        is_failure = isinstance(error, Exception) and not isinstance(error, _OTHER_ERRORS)
        if self._is_loading and is_failure:
            self._is_reporting = False
            self._report_failure(error)
        self.end()

    @contextmanager
    def watch(self, checkpoint: str | CheckpointReference) -> Iterator[None]:
        """Watch a block that loads `checkpoint`: print and report an exception as a load failure.

        Pass on every exception. DetcloudError, InvalidHP and exceptions that are no Exception are
        not reported. A block of a checkpoint other than the run's first is watched only if `begin`
        was called before, without `end`. After a block without an exception, the watch
        has the same state as before the block.
        """
        uuid = checkpoint if isinstance(checkpoint, str) else checkpoint.uuid
        was_loading = self._is_loading
        if self._latest is not None and uuid == self._latest.uuid:
            self.begin()
        try:
            with self._first_step.measure_restore():
                yield
        except BaseException as error:
            self.note_error(error)
            raise
        self._is_loading = was_loading

    def _report_failure(self, error: BaseException) -> None:
        """Print the failure to stderr, and append a `checkpoint_load_failure` report.

        The report has the checkpoint's UUID and the cause. If the report cannot be written, print
        the reason and raise nothing.
        """
        assert self._latest is not None
        cause = f"{type(error).__name__}: {error}"[:CAUSE_CHARACTERS_MAX]
        text = (
            f"[detcloud] checkpoint {self._latest.uuid} cannot be loaded: {cause}; if the next run "
            "cannot load it either, the trial resumes from the checkpoint before it"
        )
        print(text, file=sys.stderr, flush=True)
        try:
            self._report(LOAD_FAILURE, uuid=self._latest.uuid, message=cause)
        except (DetcloudError, OSError, ValueError) as failure:
            # The exception of the trial's code ends the run. A full disk must not replace that
            # exception.
            text = f"[detcloud] the failure was not reported: {failure}"
            print(text, file=sys.stderr, flush=True)
