"""The exit report of a trial's process: the reason, and refused hyperparameters."""

from __future__ import annotations

import sys
from contextlib import suppress

from detcloud.core.context import Context
from detcloud.core.train import EarlyExitReason
from detcloud.shared.errors import DetcloudError, InvalidHP
from detcloud.shared.trial_directory import TrialDirectory

MESSAGE_CHARACTERS_MAX = 2000


def report_failed_exit(error: BaseException, directory: TrialDirectory, context: Context) -> None:
    """Append `exit` reports to the trial's report files after `error`, with reason and message.

    If a report fails or the file of directives is malformed, print the reason to stderr instead of
    raising DetcloudError.
    """
    try:
        report_exit(directory, context, error)
    except DetcloudError as failure:
        print(f"[detcloud] the end was not reported: {failure}", file=sys.stderr, flush=True)


def report_exit(directory: TrialDirectory, context: Context, error: BaseException | None) -> None:
    """Append the `exit` report: reason, directives' revision, and the outcome of a notice.

    `error` is the exception that ended the block, or None. Every rank reports a failure, with the
    error's text. The chief, and each rank with a report of an earlier attempt, report a good end.
    The first worker of each node also reports a good end in the report file of the node. Refused
    hyperparameters are reported as an `early_exit` as well.

    Raises DetcloudError if a report cannot be written or the file of directives, the cluster's
    instructions, is malformed.
    """
    reason = _exit_reason(context, error)
    # The chief reports a good end for all. A rank with an earlier attempt's report reports too.
    is_own = reason in ("errored", "invalid_hp")
    speaks = is_own or not directory.is_worker or directory.has_report
    reports = [directory.report] if speaks else []
    if directory.is_worker and reason != "errored" and context.distributed.local_rank == 0:
        # An agent reads only the reports of the own node, so a worker of each node reports.
        reports.append(directory.open_node_report())
    if not reports:
        return
    message = {}
    if is_own and error is not None:
        text = f"{type(error).__name__}: {error}"
        message = {"message": text[:MESSAGE_CHARACTERS_MAX]}
    if reason == "invalid_hp":
        _report_refusal(directory, context, error)
    revision = directory.directives.latest.revision
    outcome = context.notice_outcome if context.distributed.rank == 0 else None
    if outcome is not None:
        message["notice_outcome"] = outcome.value
    for report in reports:
        report.append("exit", reason=reason, directive_revision=revision, **message)


def try_to_report_refusal(
    error: BaseException, directory: TrialDirectory, context: Context
) -> None:
    """Append the `early_exit` report if `error` is an InvalidHP. Otherwise do nothing.

    Ignore a failed report, since `report_exit` tries again.
    """
    if isinstance(error, InvalidHP):
        with suppress(DetcloudError):
            _report_refusal(directory, context, error)


def _report_refusal(directory: TrialDirectory, context: Context, error: object) -> None:
    """Print and report as `early_exit` that the hyperparameters are refused. Any rank may do this.

    The report is a line of the rank's report file. Do nothing if this process has reported the
    refusal. `error` explains the refusal, or is None. Raises DetcloudError if the report cannot be
    written.
    """
    refusal = EarlyExitReason.INVALID_HP
    if context.train.early_exit is not refusal:
        why = str(error or "") or "no reason given"
        text = "the trial ends, without a restart; a search may draw others in its place each time"
        print(f"[detcloud] hyperparameters refused (InvalidHP): {why}: {text}", flush=True)
        directory.report.append("early_exit", reason=refusal.value)
        context.train.early_exit = refusal


def is_success(error: BaseException) -> bool:
    """Return whether `error` is the SystemExit of a successful end."""
    return isinstance(error, SystemExit) and error.code in (None, 0)


def _exit_reason(context: Context, error: BaseException | None) -> str:
    """Return the reason of the exit report.

    An `error` gives `invalid_hp` or `errored`. A successful SystemExit counts as no error. Then an
    early exit gives `stop_requested` or `invalid_hp`. Then the operations' Outcome decides, then an
    acknowledged request to stop gives `preempted`. Otherwise the reason is `completed` if no
    operation is left, else `stop_requested`. Raises DetcloudError if the cluster's file of
    directives is malformed.
    """
    if error is not None and is_success(error):
        error = None
    if isinstance(error, InvalidHP):
        return "invalid_hp"
    if error is not None:
        return "errored"
    if context.train.early_exit is not None:
        stopped = context.train.early_exit is EarlyExitReason.USER_REQUESTED_STOP
        return "stop_requested" if stopped else "invalid_hp"
    if context.searcher.outcome is not None:
        return context.searcher.outcome.value
    if context.preempt.was_seen and context.preempt.is_acknowledged:
        return "preempted"
    # The code returned by itself: the trial is complete if no operation is left.
    return "completed" if context.searcher.is_finished() else "stop_requested"
