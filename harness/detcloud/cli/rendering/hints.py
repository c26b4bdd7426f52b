"""Warnings of the cluster, and hints on the next command, printed on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

from detcloud.cli.rendering.table import cell_text, time_text
from detcloud.cli.rendering.terminal import sanitize
from detcloud.client import Experiment, Trial
from detcloud.shared.plurals import count_text
from detcloud.shared.process_exits import LOG_QUOTE

# A search method that runs calls every half a minute at the latest, and is noted as often.
METHOD_AWAY_SECONDS = 90.0


def print_warnings(warnings: Iterable[str]) -> None:
    """Print each warning of the cluster on a line of its own."""
    for warning in warnings:
        print(f"warning: {sanitize(warning)}", file=sys.stderr)


def print_failure_hint(experiment: Experiment) -> None:
    """Print which command shows why a trial failed, or why nothing was measured."""
    if experiment.state == "ERROR" or (experiment.data.get("trials") or {}).get("errored"):
        failed = [trial for trial in experiment.trials() if trial.state == "ERROR"]
        if failed:
            verb = "logs" if is_cause_in_log(failed[0]) else "describe"
            more = f" (failed too: {count_text(len(failed) - 1, 'trial')})" if failed[1:] else ""
            shows = f"`detcloud trial {verb} {failed[0].id}` shows why it failed"
            print(f"hint: {shows}{more}", file=sys.stderr)
    elif experiment.state == "COMPLETED" and experiment.best_metric is None:
        print(
            f"hint: no trial reported a finite {cell_text(experiment.metric)}; "
            f"`detcloud history {experiment.id}` tells how each ended",
            file=sys.stderr,
        )


def is_cause_in_log(trial: Trial) -> bool:
    """Return whether the log of a failed trial shows the cause of the failure.

    The message of a failed process quotes the end of the log. A trial that the cluster ended, for
    example because no agent can hold it, has a message that is the cause itself.
    """
    message = trial.data.get("message") or ""
    return (not message or LOG_QUOTE in message) and bool(trial.log_chunk(tail_bytes=1)["text"])


def print_continuation_hint(experiment: Experiment) -> None:
    """Print that a search cannot be continued, before any work of it can be lost."""
    # A cluster of an earlier version does not say.
    if experiment.data.get("continuable", True) is False:
        hint = (
            f"a search by {cell_text(experiment.searcher)} cannot be continued once it has ended; "
            "pause it to go on later"
        )
        print(f"note: {hint}", file=sys.stderr)


def print_search_method_hint(experiment: Experiment) -> None:
    """Print how to drive a custom search, or when its method was last heard of."""
    method = experiment.data.get("search_method")
    if method is None or experiment.has_ended:
        return
    heard_ms = method["heard_ms"]
    if heard_ms is None:
        hint = (
            f"experiment {experiment.id} waits for its search method, which is not running; start "
            f"it with detcloud.searcher.LocalSearchRunner(method, folder).attach({experiment.id})"
        )
    else:
        is_away = time.time() - heard_ms / 1000 > METHOD_AWAY_SECONDS
        state = "waits for its search method, which was" if is_away else "has its search method,"
        waiting = count_text(method["events_waiting"], "event")
        hint = (
            f"experiment {experiment.id} {state} last seen at {time_text(heard_ms)}; "
            f"{waiting} unanswered"
        )
    print(f"hint: {hint}", file=sys.stderr)
