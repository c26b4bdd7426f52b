"""A search that is killed three times comes to the same as one that is left alone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.conftest import require
from tests.end_to_end.kills import OVERRIDES, run, table, verdict
from tests.end_to_end.strikes import Target, drawn

pytestmark = pytest.mark.end_to_end

TARGETS = (Target.SERVER, Target.AGENT, Target.TRIAL)
SMALL = ("searcher.max_trials=3", "searcher.max_length.epochs=6")


def test_three_kills_change_nothing(tmp_path: Path) -> None:
    require("sklearn")
    seed = random.SystemRandom().randrange(10**6)
    print(f"python -m tests.end_to_end.kills --kills 3 --seed {seed} --targets server,agent,trial")
    print(*(f"--config {override}" for override in SMALL))
    expected = run(tmp_path / "undisturbed", [*OVERRIDES, *SMALL])
    found = run(tmp_path / "killed", [*OVERRIDES, *SMALL], drawn(3, seed, TARGETS))
    print(table(found.struck))
    assert verdict(expected, found, 3) == []
    # Only the trial's own kill is a failure of it, and not even that where its work was done.
    assert found.outcome.restarts <= 1
