"""Twelve tasks of a researcher's day, in the words of the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.end_to_end.tasks.counted_window import CountedWindow
from tests.end_to_end.tasks.searches import Answers

TASKS: Mapping[str, str] = {
    "best_trial": "Find the best trial of all searches, and its search",
    "failure": "Find the error that ended a search",
    "fork": "Start the best trial again with half its learning rate",
    "important": "Find the hyperparameter that matters most in a search",
    "improvement": "See whether a search still improves (its optimization history)",
    "interaction": "See in which region of two hyperparameters the good trials are",
    "compare": "Compare two searches in one chart",
    "picture": "Save the optimization history as a picture for a colleague",
    "table": "Save the hyperparameters and results of all trials as a table",
    "note": "Write a conclusion beside a search",
    "wait": "Find out why a search waits",
    "stop": "Stop everything that is mine, and nothing else",
}
"""The sentence of each task, by the task's key."""

NOTE = "Rates above 0.01 diverge; go on with 0.003."
"""The conclusion that is written."""

Way = Callable[[CountedWindow, Answers], None]
"""The shortest way to an answer. Starts at the start page, and ends when the answer is visible."""
