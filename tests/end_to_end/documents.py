"""The files and commands of a document, and the documented output of the commands.

A block of Python or YAML that begins with `# PATH` is a file. In a console block a line that begins
with `$ ` is a command, and the following lines are its output.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.end_to_end.laptop import Laptop
from tests.patience import poll_until

GAP = "..."
AFTER_SLEEP_SECONDS_MAX = 30.0
_BLOCK = re.compile(r"^```(console|python|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PATH = re.compile(r"# (\S+\.(?:py|yaml))\n")
_UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
# A job in a table or a sentence: the first digits of the job's UUID.
_JOB = re.compile(r"(?:(?<=\| )|(?<=\bjob ))[0-9a-f]{8}(?= )")
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")


class Command(NamedTuple):
    """A command and the lines below the command; `GAP` stands for any lines."""

    command: str
    lines: list[str]


class File(NamedTuple):
    """A file that the reader has to write."""

    path: str
    content: str


def play(document: Path, laptop: Laptop, home: str) -> None:
    """Write the files and run the commands of a document, in order.

    Each command must succeed and print the documented lines. `home` is the document's name for the
    laptop's data folder. After a `sleep` the next command is repeated until the documented output
    appears, since the machine may be slow.
    """
    known: dict[str, str] = {}
    was_sleep = False
    for step in steps(document):
        if isinstance(step, File):
            path = laptop.home.parent / step.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.content)
            continue
        command = step.command
        for uuid, real in known.items():
            command = command.replace(uuid[:8], real[:8])
        if was_sleep:
            printed = wait_for_output(step.lines, command, laptop, home)
        else:
            printed = command_output(command, laptop, home)
        assert missing_lines(step.lines, printed) == [], f"{command}\n{printed}"
        known |= zip(uuids("\n".join(step.lines)), uuids(printed), strict=False)
        was_sleep = command.startswith("sleep ")


def wait_for_output(lines: list[str], command: str, laptop: Laptop, home: str) -> str:
    """Repeat the command until the output contains `lines`; return the output."""
    printed = ""

    def is_complete() -> bool:
        nonlocal printed
        printed = command_output(command, laptop, home)
        return not missing_lines(lines, printed)

    poll_until(is_complete, AFTER_SLEEP_SECONDS_MAX, lambda: f"{command}\n{printed}", 0.1)
    return printed


def command_output(command: str, laptop: Laptop, home: str) -> str:
    """Return the output of the command, with `home` for the laptop's data folder.

    The command must succeed.
    """
    done = laptop.shell(["sh", "-ec", f"({command}) 2>&1"])
    assert done.returncode == 0, (command, done.stdout)
    return done.stdout.replace(str(laptop.home), home)


def steps(document: Path) -> list[Command | File]:
    """Return the files and commands of a document, in order."""
    found: list[Command | File] = []
    for language, block in _BLOCK.findall(document.read_text(encoding="utf-8")):
        if language != "console":
            if path := _PATH.match(block):
                found.append(File(path[1], block))
            continue
        lines: list[str] = []
        for line in block.splitlines():
            if line.startswith("$ "):
                lines = []
                found.append(Command(line.removeprefix("$ "), lines))
            else:
                lines.append(line)
    return found


def missing_lines(documented: list[str], printed: str) -> list[str]:
    """Return documented lines that the output lacks, and printed lines that no gap allows.

    Numbers, UUIDs and the widths of columns are ignored.
    """
    lines = [shape(line) for line in printed.splitlines()]
    # The possible numbers of printed lines that the documented lines so far account for.
    places = {0}
    for wanted in map(shape, documented):
        if wanted == GAP:
            following = set(range(min(places), len(lines) + 1))
        else:
            following = {n + 1 for n in places if n < len(lines) and lines[n] == wanted}
        if not following:
            return [wanted, *lines[min(places) :]]
        places = following
    return [] if len(lines) in places else lines[max(places) :]


def shape(line: str) -> str:
    """Return the line with `uuid` and `0` for values that differ between runs."""
    line = _NUMBER.sub("0", _JOB.sub("uuid", _UUID.sub("uuid", line)))
    return re.sub(r"-{2,}", "--", re.sub(r"\s+", " ", line)).strip()


def uuids(text: str) -> list[str]:
    """Return the distinct UUIDs in the text, and the beginnings of job UUIDs."""
    return list(dict.fromkeys([*_UUID.findall(text), *_JOB.findall(text)]))
