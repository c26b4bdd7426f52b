"""The pages of the runbook, which the server and the command line show.

The pages are the files of docs/runbook, which the packages of the server contain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "docs/runbook"
"""The folder of the pages, below the folder of the server's packages."""
_INDEX = "README"
_SILENCE = "## Silence an alarm\n"
_LINK = "[Silence the alarm](README.md#silence-an-alarm).\n"


def alarm_names(folder: Path) -> list[str]:
    """Return the sorted names of the alarms that have a page in `folder`.

    Return an empty list without the folder.
    """
    return sorted(path.stem for path in folder.glob("*.md") if path.stem != _INDEX)


def read_page(folder: Path, alarm: str) -> str | None:
    """Return the Markdown of an alarm's page.

    Return None without a page. The section about silencing is appended to each page in place of the
    link. Raises OSError if a file cannot be read.

    Args:
        folder: the folder of the pages.
        alarm: the name of the alarm. Names of other files are unknown alarms.
    """
    if alarm not in alarm_names(folder):
        return None
    page = (folder / f"{alarm}.md").read_text(encoding="utf-8")
    index = (folder / f"{_INDEX}.md").read_text(encoding="utf-8")
    _, title, section = index.partition(_SILENCE)
    return page.replace(_LINK, title + section)
