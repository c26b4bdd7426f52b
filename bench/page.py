"""The web page with much data, in Chromium.

Measured are the first view, answers and blocked threads of views, growing curves, and the requests
of an idle page. The page is built by `make page`, and the server is the real process.
"""

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from math import ceil
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from urllib.parse import urlencode, urlsplit

from bench.figures import Row, Scale, at_least, at_most, progress, row_without_value
from bench.page_filling import fill_cluster
from bench.page_growth import GROUP, growing_trials
from bench.page_window import PageWindow, open_page
from bench.reading import ANSWER_KB_MAX, P95_MS_MAX, PROFILED_RANK, FilledTable, answer
from bench.serving import serve_home
from bench.table_filling import METRICS, fill_experiments
from control_plane.query_limits import DEFAULT_LIMITS
from local_cluster.home import HomeFolder

FIRST_KB_MAX = 150
INTERACTIVE_MS_MAX = 1_000
SLOWDOWN = 4
BLOCKED_MS_MAX = 100
FRAMES_MIN = 30
# An idle page sends a request less than every 20 s.
REQUESTS_A_MINUTE_MAX = 3
COMPARED = 20
IMPORTANCE_MS_MAX = 1_000
MEDIA = "media"
# An answer has up to 2 MiB of contents, and base64 adds a third.
LARGER_ANSWERS_KB_MAX = {MEDIA: 3_000}


def page(scale: Scale) -> Iterator[Row]:
    """Yield rows for all views of a filled cluster, then for a running search."""
    with TemporaryDirectory(prefix="detcloud-bench-", ignore_cleanup_errors=True) as folder:
        home = HomeFolder(Path(folder) / "home")
        filled = fill_cluster(home, scale)
        yield from page_figures(home, filled, scale)
        yield from _experiment_table(HomeFolder(Path(folder) / "table"), scale)
        yield from _growing_curves(HomeFolder(Path(folder) / "growing"), scale)


def page_figures(home: HomeFolder, filled: FilledTable, scale: Scale) -> Iterator[Row]:
    """Yield the rows of a filled cluster."""
    token = home.load_or_create_secret("token")
    with serve_home(home) as url, open_page(url, token) as window:
        yield from _first_view(window, scale)
        yield _first_importance(url, token, filled)
        for view in views(filled):
            yield from _measure_view(window, url, token, view, scale)
        yield from _idle_page(window, scale)


def views(filled: FilledTable) -> list[tuple[str, str, str]]:
    """Return (name, address, selector of the final content) of the views with much data."""
    many = f"experiments/{filled.experiment}"
    compared = ",".join(map(str, filled.trials[:COMPARED]))
    one = f"trials/{filled.long_trial}"
    return [
        ("experiments", "experiments", "table[aria-label=experiments] tbody tr"),
        ("experiments by metric", "experiments?sort=metric&order=asc", "tbody tr"),
        ("experiments by a name that none has", "experiments?name=none", ".empty"),
        ("projects", "projects", "table[aria-label=projects] tbody tr"),
        ("curves", f"{many}/curves?trials=50", ".uplot canvas"),
        ("optimization history", f"{many}?picture=history", ".uplot canvas"),
        ("trials", f"{many}/trials", "table[aria-label=trials] tbody tr"),
        ("rungs", f"{many}/rungs", "table[aria-label=rungs] tbody tr"),
        ("timeline", f"{many}/timeline", ".timeline.picture a rect"),
        ("timeline by slot", f"{many}/timeline?lanes=slots", ".timeline.picture a rect"),
        ("hyperparameters", f"{many}/hyperparameters", ".scatter"),
        ("heat map", f"{many}/hyperparameters", ".heat a rect"),
        ("contours", f"{many}/hyperparameters?plane=contours", ".plane .contours path"),
        ("code", f"{many}/code", ".tree summary"),
        ("history", f"{many}/history", ".history li"),
        ("metrics of a trial", one, ".uplot canvas"),
        ("profiler", f"{one}/profiler?rank={PROFILED_RANK}", ".uplot canvas"),
        (MEDIA, f"{one}/media", ".media img"),
        ("log", f"{one}/logs", ".log .line"),
        ("log, errors alone", f"{one}/logs?level=ERROR", ".empty"),
        (f"compare {COMPARED} trials", f"compare?trials={compared}", ".uplot canvas"),
        ("job queue", "jobs", "table[aria-label=jobs] tbody tr"),
        ("pools and agents", "pools", "table[aria-label=agents] tbody tr"),
        ("models", "models", "table[aria-label=models] tbody tr"),
    ]


def _first_view(window: PageWindow, scale: Scale) -> Iterator[Row]:
    """Load the first view without a cache. Yield the transferred KB and the time until the list is
    shown and the thread is free.
    """
    with progress(f"first view, {scale.runs} loads"):
        loads = [window.load_first_view(SLOWDOWN) for _ in range(scale.runs + 2)]
    beside = f"not slowed down {window.load_first_view(1).interactive_ms:.0f} ms"
    yield at_most("first view: code transferred", loads[0].kilobytes, FIRST_KB_MAX, "KB")
    yield at_most(
        f"first view: to interactive, {SLOWDOWN}x slower, {scale.page_experiments:,} experiments",
        median(load.interactive_ms for load in loads[1:]),
        INTERACTIVE_MS_MAX,
        "ms",
        beside=beside,
    )


def _first_importance(url: str, token: str, filled: FilledTable) -> Row:
    """Return the row of the first answer about importance, for which nothing is cached yet."""
    path = f"/experiments/{filled.experiment}/importance"
    connection = HTTPConnection(urlsplit(url).netloc)
    with progress("importance of hyperparameters"):
        first = answer(connection, token, path)
    connection.close()
    trials = f"{min(len(filled.trials), DEFAULT_LIMITS.result_trials_max):,}"
    return at_most(
        f"importance of {trials} trials: first answer",
        first.milliseconds,
        IMPORTANCE_MS_MAX,
        "ms",
    )


def _measure_view(
    window: PageWindow, url: str, token: str, view: tuple[str, str, str], scale: Scale
) -> Iterator[Row]:
    """Visit a view several times and repeat its requests. Yield answer times, sizes and blocked
    times.
    """
    name, address, selector = view
    with progress(name):
        try:
            visits = [window.visit(address, selector) for _ in range(scale.runs)]
        except RuntimeError as error:
            yield row_without_value(name, error)
            return
        paths = sorted({path for visit in visits for path in visit.paths})
        times, kilobytes = _ask_again(url, token, paths, scale.page_answers)
    if not times:
        yield row_without_value(name, "it asked for nothing")
        return
    p95 = times[ceil(0.95 * len(times)) - 1]
    beside = f"median {median(times):.0f} ms, {len(paths)} requests, largest {kilobytes:.0f} KB"
    yield at_most(f"{name}: answers, p95", p95, P95_MS_MAX, "ms", beside=beside)
    kilobytes_max = LARGER_ANSWERS_KB_MAX.get(name, ANSWER_KB_MAX)
    if kilobytes > kilobytes_max:
        yield at_most(f"{name}: largest answer", kilobytes, kilobytes_max, "KB")
    yield at_most(
        f"{name}: thread blocked at once",
        median(visit.longest_ms for visit in visits),
        BLOCKED_MS_MAX,
        "ms",
        beside=f"shown after {median(visit.shown_ms for visit in visits):.0f} ms, "
        f"longest of all {max(visit.longest_ms for visit in visits):.0f} ms, "
        f"processor time {median(visit.busiest_ms for visit in visits):.0f} ms",
    )


def _ask_again(url: str, token: str, paths: list[str], answers: int) -> tuple[list[float], float]:
    """Milliseconds of answers to all paths, in order, and the KB of the largest."""
    connection = HTTPConnection(urlsplit(url).netloc)
    found = [answer(connection, token, path) for _ in range(answers) for path in paths]
    connection.close()
    times = sorted(one.milliseconds for one in found)
    return times, max((one.size for one in found), default=0) / 1000


def _experiment_table(home: HomeFolder, scale: Scale) -> Iterator[Row]:
    """Yield rows for the table of ended experiments with three columns of metrics.

    The table is sorted by a metric, and also filtered by a metric and a hyperparameter.
    """
    count = scale.page_experiments
    with progress(f"{count:,} ended experiments"):
        fill_experiments(home, count)
    token = home.load_or_create_secret("token")
    keys = ["name", "curve", *(f"metric:{name}" for name in METRICS)]
    columns = urlencode({"columns": json.dumps(keys)})
    selector = "table[aria-label=experiments] tbody tr"
    what = f"{count:,} experiments, {len(METRICS)} metrics"
    sort = f"sort=metric:{METRICS[1]}"
    query = urlencode({"filter": f"metric:{METRICS[0]}<0.5 lr>0.5"})
    with serve_home(home) as url, open_page(url, token) as window:
        for name, address in (
            (f"{what}, by a metric", f"experiments?{columns}&{sort}"),
            (f"{what}, filtered", f"experiments?{columns}&{sort}&{query}"),
        ):
            yield from _measure_view(window, url, token, (name, address, selector), scale)


def _growing_curves(home: HomeFolder, scale: Scale) -> Iterator[Row]:
    what = f"{scale.page_curves} curves of {scale.page_points:,} points while they grow"
    with growing_trials(home, scale.page_curves, scale.page_points) as growth:
        token = home.load_or_create_secret("token")
        with open_page(growth.url, token) as window, progress(what):
            query = f"group={GROUP}&metric=loss&trials={scale.page_curves}"
            address = f"experiments/{growth.experiment}/curves?{query}"
            frames = window.count_frames(address, ".uplot canvas", 10.0)
    beside = f"slowest second {frames.slowest:.0f}, {frames.changes} redraws"
    beside += f", {frames.curves} curves"
    yield at_least(what, frames.mean, FRAMES_MIN, "frames/s", beside=beside)


def _idle_page(window: PageWindow, scale: Scale) -> Iterator[Row]:
    for name in ("experiments", "jobs", "pools", "models"):
        with progress(f"idle at {name}"):
            asked = window.count_idle_requests(name, scale.page_idle_minutes)
        yield at_most(
            f"{name}: requests of an idle page",
            asked / scale.page_idle_minutes,
            REQUESTS_A_MINUTE_MAX,
            "a minute",
        )
