"""Hints on stderr: which command shows why an experiment did not come to what was hoped for."""

from __future__ import annotations

import sys
import time

from detcloud.cli.rendering.quantities import count_text
from detcloud.cli.rendering.table import cell_text, time_text
from detcloud.client import Experiment, Trial

# A search method that runs calls every half a minute at the latest, and is noted as often.
METHOD_AWAY_SECONDS = 90.0


def print_failure_hint(experiment: Experiment) -> None:
    """Print which command shows why a trial failed, or why nothing was measured."""
    if experiment.state == "ERROR" or (experiment.data.get("trials") or {}).get("errored"):
        failed = [trial for trial in experiment.trials() if trial.state == "ERROR"]
        if failed:
            verb = "logs" if has_log(failed[0]) else "describe"
            more = f" (failed too: {count_text(len(failed) - 1, 'trial')})" if failed[1:] else ""
            shows = f"`detcloud trial {verb} {failed[0].id}` shows why it failed"
            print(f"hint: {shows}{more}", file=sys.stderr)
    elif experiment.state == "COMPLETED" and experiment.best_metric is None:
        print(
            f"hint: no trial reported a finite {cell_text(experiment.metric)}; "
            f"`detcloud history {experiment.id}` tells how each ended",
            file=sys.stderr,
        )


def has_log(trial: Trial) -> bool:
    """Whether a trial printed anything; one that could not be started did not."""
    return bool(trial.log_chunk(tail_bytes=1)["text"])


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
