"""What a custom search waits for: its search method, a process of the user's own."""

from __future__ import annotations

import sys
import time

from detcloud.cli.table import time_text
from detcloud.cli.terminal import counted
from detcloud.client import Experiment

# A method that runs calls every half a minute at the latest, and is noted as often.
AWAY_SECONDS = 90.0


def print_method_hint(experiment: Experiment) -> None:
    """Says on stderr how to drive a custom search, or when its method was last heard of."""
    method = experiment.data.get("search_method")
    if method is None or experiment.ended:
        return
    heard_ms = method["heard_ms"]
    if heard_ms is None:
        hint = (
            f"experiment {experiment.id} waits for its search method, which nobody has started; "
            f"detcloud.searcher.LocalSearchRunner(method, folder).attach({experiment.id}) does"
        )
    else:
        away = time.time() - heard_ms / 1000 > AWAY_SECONDS
        what = "waits for its search method, which was" if away else "has its search method,"
        waiting = counted(method["events_waiting"], "event")
        hint = (
            f"experiment {experiment.id} {what} last heard of at {time_text(heard_ms)}; "
            f"{waiting} unanswered"
        )
    print(f"hint: {hint}", file=sys.stderr)
