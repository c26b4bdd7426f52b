"""The shortest ways to the answers in Optuna's dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.end_to_end.tasks.counted_window import CountedWindow
from tests.end_to_end.tasks.day import NOTE, Way
from tests.end_to_end.tasks.searches import BEST, FLOORS, Answers
from tests.patience import wait_until


def find_best_trial(user: CountedWindow, answers: Answers) -> None:
    # The list of studies has no values, so that each study has to be opened.
    for place, name in enumerate(FLOORS):
        if place:
            user.click_link("Return to the top page")
        _open_study(user, name)
        user.see(user.window.get_by_role("heading", name="Best Trial (number="))


def find_important(user: CountedWindow, answers: Answers) -> None:
    _open_study(user, BEST)
    names = user.window.locator(".js-plotly-plot").nth(1).locator(".yaxislayer-above text")
    user.see(names.get_by_text(answers.important, exact=True))


def see_improvement(user: CountedWindow, answers: Answers) -> None:
    _open_study(user, BEST)
    user.see(_first_plot(user).locator(".scatterlayer"))


def see_interaction(user: CountedWindow, answers: Answers) -> None:
    _open_study(user, BEST)
    user.click_link("Analytics")
    user.see(user.window.locator(".js-plotly-plot .contourlayer"))


def compare_searches(user: CountedWindow, answers: Answers) -> None:
    user.click_link("Compare")
    # The first study is chosen already.
    user.click(user.window.get_by_role("button", name=f"2. {BEST}"), "Shift")
    user.see(_first_plot(user).locator(".legend"))


def save_picture(user: CountedWindow, answers: Answers) -> None:
    _open_study(user, BEST)
    plot = _first_plot(user)
    user.point_at(plot)
    button = plot.locator("[data-title='Download plot as a png']")
    assert user.save_file(button).read_bytes().startswith(b"\x89PNG")


def save_table(user: CountedWindow, answers: Answers) -> None:
    _open_study(user, BEST)
    user.click_link("Smart Selection")
    saved = user.save_file(user.window.get_by_role("link", name="Download CSV File"))
    assert answers.important in saved.read_text()


def write_note(user: CountedWindow, answers: Answers) -> None:
    _open_study(user, BEST)
    user.click_link("Note")
    user.click(user.window.locator("main").get_by_role("button"))
    text = user.window.get_by_role("textbox")
    user.click(text)
    user.type(NOTE)
    user.click_button("Save")
    # The editor stays open. The button Save is disabled if all changes are saved.
    save = user.window.get_by_role("button", name="Save", exact=True)
    wait_until(save.is_disabled)
    user.see(text)


WAYS: Mapping[str, Way] = {
    "best_trial": find_best_trial,
    "important": find_important,
    "improvement": see_improvement,
    "interaction": see_interaction,
    "compare": compare_searches,
    "picture": save_picture,
    "table": save_table,
    "note": write_note,
}
"""Studies have no code, no errors, no queue and no running work: the other tasks are missing."""


def _open_study(user: CountedWindow, name: str) -> None:
    user.click(user.window.get_by_role("link", name=name))


def _first_plot(user: CountedWindow) -> Any:
    return user.window.locator(".js-plotly-plot").first
