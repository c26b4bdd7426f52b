"""The commands of a document and what it says they print."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

GAP = "..."
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")


class Documented(NamedTuple):
    """A command and the lines below it; `GAP` stands for any lines."""

    command: str
    lines: list[str]


def commands(document: Path) -> list[Documented]:
    """Those of its console blocks, in order: a line that begins with `$ ` is a command."""
    found: list[Documented] = []
    for block in _BLOCK.findall(document.read_text(encoding="utf-8")):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Documented(line.removeprefix("$ "), []))
            else:
                found[-1].lines.append(line)
    return found


def missing_lines(documented: list[str], printed: str) -> list[str]:
    """What is not printed in the documented order, or printed where no gap allows it.

    Numbers, UUIDs and the widths of columns do not count.
    """
    wanted, lines = [shape(line) for line in documented], [shape(x) for x in printed.splitlines()]
    place, may_skip = 0, False
    for line in wanted:
        if line == GAP:
            may_skip = True
            continue
        end = len(lines) if may_skip else place + 1
        if line not in lines[place:end]:
            return [line, *lines[place:]]
        place, may_skip = lines.index(line, place) + 1, False
    return [] if may_skip else lines[place:]


def shape(line: str) -> str:
    """The line with `uuid` and `0` for what differs from run to run."""
    line = _NUMBER.sub("0", _UUID.sub("uuid", line))
    return re.sub(r"-{2,}", "--", re.sub(r"\s+", " ", line)).strip()


def uuids(text: str) -> list[str]:
    """The UUIDs in the text, each once."""
    return list(dict.fromkeys(_UUID.findall(text)))
