"""The file by which a machine's watchdog sees that the agent works."""

import os
from pathlib import Path

import pytest

from detcloud.agent.alive_file import REFRESH_SECONDS, AliveFile
from detcloud.shared.outage import OUTAGE_SECONDS_MAX

ANSWERED = 1_800_000_000


@pytest.mark.parametrize(
    ("silent_seconds", "is_fresh"), [(OUTAGE_SECONDS_MAX, True), (OUTAGE_SECONDS_MAX + 1, False)]
)
def test_alive_file_stays_fresh_for_six_hours_without_the_cluster(
    tmp_path: Path, silent_seconds: int, is_fresh: bool
) -> None:
    path = tmp_path / "alive"
    AliveFile(path, lambda: ANSWERED).record_answer()
    os.utime(path, (1, 1))
    # A second process of the agent continues from the recorded answer.
    AliveFile(path, lambda: ANSWERED + silent_seconds).refresh()
    assert (path.stat().st_mtime > 1) is is_fresh


@pytest.mark.parametrize("content", [None, "", "soon"])
def test_alive_file_is_not_refreshed_before_the_first_answer(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "alive"
    if content is not None:
        path.write_text(content)
        os.utime(path, (1, 1))
    AliveFile(path).refresh()
    assert not path.exists() or path.stat().st_mtime == 1


def test_alive_file_is_touched_once_a_minute(tmp_path: Path) -> None:
    now, path = [0.0], tmp_path / "alive"
    alive = AliveFile(path, lambda: ANSWERED, lambda: now[0])
    alive.record_answer()
    touched = []
    for now[0] in (0.0, REFRESH_SECONDS - 1, REFRESH_SECONDS):
        os.utime(path, (1, 1))
        alive.refresh()
        touched.append(path.stat().st_mtime > 1)
    assert touched == [True, False, True]
