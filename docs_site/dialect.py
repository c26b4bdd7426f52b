"""Translation of GitHub's Markdown to Python-Markdown, the generator's dialect.

Python-Markdown nests lists by four columns and starts a list only after an empty line. GitHub nests
by the width of the parent's marker and needs no empty line. `outline.py` finds further differences.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

COLUMNS = 4
_SPAN = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
_MARKER = re.compile(r"\s*(?:[-*+]|\d+[.)])(?: {1,4}(?=\S)|\s*$)")


class Item(NamedTuple):
    """The innermost list item of a line."""

    depth: int
    column: int
    """The column of the item's content in the source."""
    first_line: int


def parser() -> MarkdownIt:
    """Return a parser of the Markdown that the documents use: CommonMark with tables."""
    return MarkdownIt("commonmark").enable("table")


def to_python_markdown(text: str) -> str:
    """Return the text in the generator's dialect; both have the same content."""
    lines = text.split("\n")
    tokens = parser().parse(text)
    _change_lines(tokens, lines)
    items, list_starts = _find_lists(tokens, lines)
    written: list[str] = []
    for number, line in enumerate(lines):
        if number in list_starts and written and written[-1].strip():
            written.append("")
        written.append(_indent(line, number, items.get(number)))
    return "\n".join(written)


def _change_lines(tokens: list[Token], lines: list[str]) -> None:
    """Change lines in place: rows of tables, and first lines of blocks of code.

    A pipe in a span of code is escaped for GitHub, and shown with its backslash by
    Python-Markdown. The generator accepts one word after the marks of a block of code.
    """
    for token in tokens:
        if token.type == "table_open" and token.map:
            for number in range(*token.map):
                lines[number] = _SPAN.sub(lambda span: span[0].replace("\\|", "|"), lines[number])
        elif token.type == "fence" and token.map and " " in token.info.strip():
            first = token.map[0]
            lines[first] = lines[first].replace(token.info.strip(), token.info.split()[0], 1)


def _find_lists(tokens: list[Token], lines: list[str]) -> tuple[dict[int, Item], set[int]]:
    """Return the innermost item of each line in a list, and the first lines of outer lists."""
    items: dict[int, Item] = {}
    starts: set[int] = set()
    depth = 0
    for token in tokens:
        if token.type in ("bullet_list_open", "ordered_list_open"):
            if depth == 0 and token.map:
                starts.add(token.map[0])
            depth += 1
        elif token.type in ("bullet_list_close", "ordered_list_close"):
            depth -= 1
        elif token.type == "list_item_open" and token.map:
            first, end = token.map
            marker = _MARKER.match(lines[first])
            item = Item(depth, len(marker[0]) if marker else 0, first)
            items.update((number, item) for number in range(first, end))
    return items, starts


def _indent(line: str, number: int, item: Item | None) -> str:
    if item is None or not line.strip():
        return line
    if number == item.first_line:
        return " " * COLUMNS * (item.depth - 1) + line.lstrip()
    content = line[item.column :] if not line[: item.column].strip() else line.lstrip()
    return " " * COLUMNS * item.depth + content
