"""Warnings of the cluster and hints about the next command, printed to stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from detcloud.cli.rendering.table import cell_text, time_text
from detcloud.cli.rendering.terminal import sanitize
from detcloud.client import Client, Experiment, Trial
from detcloud.shared.errors import DetcloudError
from detcloud.shared.plurals import count_text
from detcloud.shared.process_exits import LOG_QUOTE

# A running search method sends a request at least every 30 s, and the cluster records the time.
METHOD_AWAY_SECONDS = 90.0


def print_warnings(warnings: Iterable[str]) -> None:
    """Print each warning of the cluster to stderr on a separate line, after `warning: `."""
    for warning in warnings:
        print(f"warning: {sanitize(warning)}", file=sys.stderr)


def print_page_link(client: Client, view: str) -> None:
    """Print the address of a view of the web page to stderr, if stderr is a terminal and the
    cluster has a page. The cluster is asked only for a terminal, and errors of the request are
    ignored.
    """
    if not sys.stderr.isatty():
        return
    # Imported here, because no other command needs the module.
    from detcloud.client.page_export import page_link

    with suppress(DetcloudError):
        if link := page_link(client, view):
            print(f"page: {link}", file=sys.stderr)


def print_failure_hint(experiment: Experiment) -> None:
    """Print to stderr the command that shows why a trial failed or why no metric was recorded.
    Print nothing if neither applies.

    The trials and the end of a log are fetched from the cluster if the experiment or a trial
    failed. Only the first failed trial is named, with the number of the others. A completed
    experiment without a metric gets a hint on its history.

    Raises:
        DetcloudError: a request to the cluster failed.
    """
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
            f"`detcloud history {experiment.id}` shows how each trial ended",
            file=sys.stderr,
        )


def is_cause_in_log(trial: Trial) -> bool:
    """Return whether the log of a failed trial shows the cause of the failure. False for an empty
    log.

    The message of a failed process quotes the end of the log. A trial that the cluster ended has a
    message that is the cause itself, for example because no agent has enough slots. The result is
    then False, without a request. Otherwise the end of the log is fetched from the cluster.

    Raises:
        DetcloudError: the request to the cluster failed.
    """
    message = trial.data.get("message") or ""
    return (not message or LOG_QUOTE in message) and bool(trial.log_chunk(tail_bytes=1)["text"])


def print_continuation_hint(experiment: Experiment) -> None:
    """Print a note to stderr if the experiment's search cannot be continued after the end.
    Otherwise print nothing. A missing field `continuable` means that the search can be continued.
    """
    # Clusters of earlier versions do not send the field.
    if experiment.data.get("continuable", True) is False:
        hint = (
            f"a search by {cell_text(experiment.searcher)} cannot be continued after its end; "
            "pause the experiment to resume it later"
        )
        print(f"note: {hint}", file=sys.stderr)


def print_search_method_hint(
    experiment: Experiment, clock: Callable[[], float] = time.time
) -> None:
    """Print a hint on the search method of a custom search to stderr. Print nothing for other
    searches and for ended experiments.

    If the method was never heard of, the hint says how to start the method. Otherwise the hint has
    the time of the method's last request and the number of unanswered events. No request is sent.
    `clock` returns the present time in seconds since the epoch.
    """
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
        is_away = clock() - heard_ms / 1000 > METHOD_AWAY_SECONDS
        state = "waits for its search method," if is_away else "has a search method,"
        waiting = count_text(method["events_waiting"], "unanswered event")
        hint = f"experiment {experiment.id} {state} last seen at {time_text(heard_ms)}; {waiting}"
    print(f"hint: {hint}", file=sys.stderr)
