"""The shortest ways to the answers on the cluster's web page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tests.end_to_end.tasks.counted_window import CountedWindow
from tests.end_to_end.tasks.day import NOTE, Way
from tests.end_to_end.tasks.searches import (
    BEST,
    FAILED,
    FAILURE,
    RUNNING,
    USER,
    WAITING,
    Answers,
)
from tests.patience import wait_until

# Tasks after which the cluster is not as before.
CHANGES = ("fork", "note", "stop")


def find_best_trial(user: CountedWindow, answers: Answers) -> None:
    user.click_link("Experiments", _sections(user))
    user.click_button("Best")
    # The order has arrived when the best search is in the first row.
    user.window.locator("tbody tr").first.get_by_text(BEST).wait_for()
    user.click_link(BEST)
    user.see(_facts(user).get_by_role("link", name=f"trial {answers.best_trial}", exact=True))


def find_failure(user: CountedWindow, answers: Answers) -> None:
    user.click_link(FAILED)
    user.see(user.window.get_by_text(FAILURE))


def fork_best_trial(user: CountedWindow, answers: Answers) -> None:
    user.click_link(BEST)
    user.click_link(f"trial {answers.best_trial}", _facts(user))
    user.click_link("Fork with these hyperparameters")
    halve_rate(user, answers)
    user.click_button("Create")
    user.click_button("Create experiment", user.window.get_by_role("dialog"))
    user.window.wait_for_url(re.compile(r"#/experiments/\d+$"))
    user.see(user.window.get_by_role("heading", name=BEST, level=1))


def halve_rate(user: CountedWindow, answers: Answers) -> None:
    """Halve the learning rate in the form of a new experiment."""
    area = user.window.get_by_label("Configuration (YAML)")
    user.replace_number(area, "lr: ", f"{answers.best_rate / 2:.6f}")


def find_important(user: CountedWindow, answers: Answers) -> None:
    user.click_link(BEST)
    first = user.window.get_by_role("table", name="importance").locator("tbody tr").first
    user.see(first.get_by_text(answers.important, exact=True))


def see_improvement(user: CountedWindow, answers: Answers) -> None:
    _open_history(user, answers)


def see_interaction(user: CountedWindow, answers: Answers) -> None:
    _open_part(user, "Hyperparameters")
    user.see(user.window.locator("svg.heat a rect"))


def compare_searches(user: CountedWindow, answers: Answers) -> None:
    for experiment in (answers.best, answers.other):
        user.click(user.window.get_by_role("checkbox", name=f"choose {experiment}", exact=True))
    user.window.get_by_role("link", name="Compare", exact=True).wait_for()
    user.press("v")
    curves = user.window.get_by_role("list", name="curves")
    for name in (f"experiment {answers.best}", f"experiment {answers.other}"):
        curves.get_by_text(name).first.wait_for()
    user.see(user.window.locator(".uplot canvas"))


def save_picture(user: CountedWindow, answers: Answers) -> None:
    _open_history(user, answers)
    picture = user.save_file(user.window.get_by_role("button", name="PNG of loss"))
    assert picture.read_bytes().startswith(b"\x89PNG")


def save_table(user: CountedWindow, answers: Answers) -> None:
    _open_part(user, "Hyperparameters")
    name = "CSV of hyperparameters of each trial"
    table = user.save_file(user.window.get_by_role("button", name=name)).read_text()
    assert f"\n{answers.best_trial}," in table


def write_note(user: CountedWindow, answers: Answers) -> None:
    user.click_link(BEST)
    user.click(user.window.get_by_role("button", name=re.compile("^(Add|Edit) notes$")))
    user.type(NOTE)
    user.press("Control+Enter")
    user.see(user.window.locator("p.notes", has_text=NOTE))


def find_wait(user: CountedWindow, answers: Answers) -> None:
    row = user.window.get_by_role("region", name="waiting").locator("li", has_text=WAITING)
    user.see(row.get_by_text("slot"))


def stop_all(user: CountedWindow, answers: Answers) -> None:
    user.click_link("Experiments", _sections(user))
    user.press("/")
    user.type(f"user:{USER} state:ACTIVE")
    user.press("Enter")
    rows = user.window.get_by_role("table", name="experiments").locator("tbody tr")
    # The running and the waiting search, without the search of another user.
    wait_until(lambda: _names_in(rows) == {RUNNING, WAITING})
    user.click(user.window.get_by_role("checkbox", name="choose all"))
    user.click_button("Kill")
    user.click_button("Kill", user.window.get_by_role("dialog"))
    user.see(user.window.get_by_text("No experiments match these filters."))


WAYS: Mapping[str, Way] = {
    "best_trial": find_best_trial,
    "failure": find_failure,
    "fork": fork_best_trial,
    "important": find_important,
    "improvement": see_improvement,
    "interaction": see_interaction,
    "compare": compare_searches,
    "picture": save_picture,
    "table": save_table,
    "note": write_note,
    "wait": find_wait,
    "stop": stop_all,
}


def _sections(user: CountedWindow) -> Any:
    return user.window.get_by_role("navigation", name="views", exact=True)


def _facts(user: CountedWindow) -> Any:
    return user.window.locator("dl.facts").first


def _open_part(user: CountedWindow, part: str) -> None:
    """Open a part of the best search."""
    user.click_link(BEST)
    user.click_link(part, user.window.get_by_role("navigation", name="parts of this view"))


def _open_history(user: CountedWindow, answers: Answers) -> None:
    user.click_link(BEST)
    name = f"optimization history of experiment {answers.best}"
    user.see(user.window.get_by_role("img", name=name).locator("canvas"))


def _names_in(rows: Any) -> set[str]:
    """Return the names of the experiments in rows of the table."""
    return {str(text).split("\t")[2] for text in rows.all_inner_texts()}
