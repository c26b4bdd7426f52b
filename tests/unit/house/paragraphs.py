"""Paragraphs, lists and table cells of the documents that are too long to read at a glance.

`python -m tests.unit.house.paragraphs` prints each place above a limit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.unit.house.rules import ROOT

PARAGRAPH_WORDS_MAX = 120
LIST_WORDS_MAX = 250
CELL_CHARACTERS_MAX = 250
"""Characters of a cell as a browser shows the cell: an address of a link does not count."""

PATTERNS = (
    "*.md",
    "docs/*.md",
    "docs/python/*.md",
    "docs/runbook/*.md",
    "docs/tutorials/*.md",
    "images/*.md",
    "examples/**/*.md",
    "tests/*.md",
)
# Entries of released versions do not change.
HISTORY = "CHANGELOG.md"

EXCEPTIONS: dict[str, int] = {}
"""The number of places above a limit, for each page that has such places. Lower the numbers."""

_ITEM = re.compile(r"(?:[-*]|\d+\.) ")
_FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


class Wall(NamedTuple):
    """A place above a limit."""

    page: str
    line: int
    problem: str
    """The kind, the size and the limit: `paragraph of 130 words, at most 120`."""


def pages() -> list[Path]:
    """Return the checked documents. Decision records and fragments of the changelog are not."""
    return sorted(
        path for pattern in PATTERNS for path in ROOT.glob(pattern) if path.name != HISTORY
    )


def all_walls() -> list[Wall]:
    """Return the places above a limit in all checked documents."""
    return [
        Wall(path.relative_to(ROOT).as_posix(), line, problem)
        for path in pages()
        for line, problem in find_walls(path.read_text(encoding="utf-8"))
    ]


def find_walls(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and problem of each place of a document above a limit.

    A paragraph is a block of text, or an item of a list without the item's own items. The limit of
    lists counts all items without a blank line between them. Blocks of code do not count.
    """
    lines = _without_code(text).splitlines()
    for line, paragraph in _groups(lines, splits_lists=True):
        if (words := len(paragraph.split())) > PARAGRAPH_WORDS_MAX:
            yield line, f"paragraph of {words} words, at most {PARAGRAPH_WORDS_MAX}"
    for line, block in _groups(lines, splits_lists=False):
        if (words := len(block.split())) > LIST_WORDS_MAX:
            yield line, f"list of {words} words, at most {LIST_WORDS_MAX}"
    for line, cell in _cells(lines):
        if (size := len(cell)) > CELL_CHARACTERS_MAX:
            yield line, f"cell of {size} characters, at most {CELL_CHARACTERS_MAX}"


def excesses(walls: list[Wall], exceptions: dict[str, int]) -> list[str]:
    """Return a line for each page with another number of places than its exception allows."""
    counts = Counter(wall.page for wall in walls)
    found = []
    for page in sorted(counts.keys() | exceptions.keys()):
        allowed = exceptions.get(page, 0)
        if counts[page] > allowed:
            places = [f"line {wall.line}: {wall.problem}" for wall in walls if wall.page == page]
            found.append(f"{page}: {allowed} allowed, split or shorten " + "; ".join(places))
        elif counts[page] < allowed:
            found.append(f"{page}: lower its exception from {allowed} to {counts[page]}")
    return found


def _without_code(text: str) -> str:
    """Return the text with the lines of code blocks and comments left blank."""

    def blank(found: re.Match[str]) -> str:
        return "\n" * found[0].count("\n")

    return _FENCE.sub(blank, _COMMENT.sub(blank, text))


def _groups(lines: list[str], *, splits_lists: bool) -> Iterator[tuple[int, str]]:
    """Yield number and text of each group of lines; blank lines, headings and tables end a group.

    With `splits_lists`, each item of a list begins a group.
    """
    start, group = 0, list[str]()
    for number, line in enumerate([*lines, ""], 1):
        text = line.strip()
        is_text = bool(text) and not text.startswith(("#", "|"))
        if group and (not is_text or (splits_lists and _ITEM.match(text))):
            yield start, " ".join(group)
            group = []
        if is_text:
            start = start if group else number
            group.append(text)


def _cells(lines: list[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("|"):
            shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line)
            for cell in re.split(r"(?<!\\)\|", shown.strip().strip("|")):
                yield number, cell.strip()


if __name__ == "__main__":
    print(*(f"{wall.page}:{wall.line}: {wall.problem}" for wall in all_walls()), sep="\n")
