"""`python -m tests.end_to_end.tasks`: the work of twelve tasks of a researcher's day.

Each task is done in Chromium on the web page of a cluster on this machine, with searches that are
run for this purpose. With `--dashboard`, the same tasks are done in Optuna's dashboard with the
same trials. The rules of the comparison are in docs/page-tour.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tests.emulators.server import free_port, serving
from tests.end_to_end.browser import open_window, start_chromium
from tests.end_to_end.laptop import Laptop
from tests.end_to_end.tasks import dashboard_ways, page_ways
from tests.end_to_end.tasks.counted_window import CountedWindow, Counts
from tests.end_to_end.tasks.day import TASKS, Way
from tests.end_to_end.tasks.searches import USER, Answers, Searches

SIZE = {"width": 1440, "height": 900}
STUDIES = Path(__file__).with_name("optuna_studies.py")
CONTENT_MS_MAX = 60_000
NOT_THERE = "not there"


class Work(NamedTuple):
    """The work of a task: the counts of each round are equal, and the seconds are the median."""

    counts: Counts
    seconds: float


class Tool(NamedTuple):
    """A tool in which tasks are done."""

    name: str
    window: Any
    start: str
    """The address of the start page."""
    ways: Mapping[str, Way]


def main() -> int:
    """Do all tasks and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dashboard", type=Path, help="the program optuna-dashboard")
    parser.add_argument("--rounds", type=int, default=3, help="how often each task is done")
    parser.add_argument("--only", choices=TASKS, action="append", help="a single task")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        laptop = Laptop(Path(folder) / "home", LOGNAME=USER)
        searches = Searches(laptop, Path(folder))
        try:
            answers = searches.fill()
            with open_tools(searches, arguments.dashboard, Path(folder)) as tools:
                works = {
                    tool.name: {
                        task: do_task(tool, task, answers, arguments.rounds, searches.start_again)
                        for task in arguments.only or TASKS
                    }
                    for tool in tools
                }
        finally:
            laptop.end()
    print(f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} processors\n")
    print("\n".join(render_table(works)))
    return 0


@contextmanager
def open_tools(searches: Searches, dashboard: Path | None, folder: Path) -> Iterator[list[Tool]]:
    """Yield the page, signed in, and the dashboard if there is one."""
    options: Any = {"viewport": SIZE}
    with start_chromium() as chromium, open_window(chromium, searches.laptop, **options) as browser:
        browser.sign_in()
        page = Tool("detcloud", browser.window, f"{browser.page}#/home", page_ways.WAYS)
        if dashboard is None:
            yield [page]
            return
        with start_dashboard(searches, dashboard, folder) as address:
            context = chromium.new_context(**options)
            context.set_default_timeout(CONTENT_MS_MAX)
            other = Tool("Optuna", context.new_page(), address, dashboard_ways.WAYS)
            yield [page, other]
            context.close()


@contextmanager
def start_dashboard(searches: Searches, program: Path, folder: Path) -> Iterator[str]:
    """Write the ended searches into studies, and yield the address of a dashboard of these."""
    trials, database = folder / "trials.json", folder / "studies.db"
    trials.write_text(json.dumps(searches.export_trials()))
    # Absolute, but not resolved: the interpreter of a virtual environment is a link.
    program = program.absolute()
    python = program.with_name("python")
    written = searches.laptop.shell([str(python), str(STUDIES), str(trials), str(database)])
    written.check_returncode()
    port = free_port()
    address = f"http://127.0.0.1:{port}/dashboard/"
    place: list[str | Path] = ["--host", "127.0.0.1", "--port", str(port)]
    command = [program, f"sqlite:///{database}", *place]
    with serving(command, address, folder / "dashboard.log"):
        yield address


def do_task(
    tool: Tool, task: str, answers: Answers, rounds: int, start_again: Callable[[], None]
) -> Work | None:
    """Do a task several times. None if the tool does not have the task."""
    if task not in tool.ways:
        return None
    times: list[float] = []
    counts: set[Counts] = set()
    for _ in range(rounds):
        user = CountedWindow(tool.window)
        tool.window.goto("about:blank")
        began = time.perf_counter()
        tool.window.goto(tool.start)
        tool.ways[task](user, answers)
        times.append(time.perf_counter() - began)
        counts.add(user.counts)
        print(f"{tool.name}: {task} {times[-1]:.2f} s {user.counts}", file=sys.stderr, flush=True)
        if tool.ways is page_ways.WAYS and task in page_ways.CHANGES:
            start_again()
    # Another count in another round would be a way that depends on luck.
    [equal] = counts
    return Work(equal, median(times))


def render_table(works: Mapping[str, Mapping[str, Work | None]]) -> Iterator[str]:
    """Yield the lines of the table: for each tool the clicks, keys, scrolls and seconds."""
    heads = [f"{name}: clicks, keys, scrolls | {name}: seconds" for name in works]
    yield f"| task | {' | '.join(heads)} |"
    yield "|---|" + "---|---:|" * len(works)
    for task in next(iter(works.values())):
        cells = [cell for done in works.values() for cell in _cells(done[task])]
        yield f"| {TASKS[task]} | {' | '.join(cells)} |"


def _cells(work: Work | None) -> tuple[str, str]:
    if work is None:
        return NOT_THERE, "–"
    return ", ".join(map(str, work.counts)), f"{work.seconds:.1f}"


if __name__ == "__main__":
    sys.exit(main())
