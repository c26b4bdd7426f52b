"""The stacks of a trial's processes, found in the log.

A hanging trial lets each process print the stacks of its threads, in the form of `faulthandler`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from detcloud.client.records import LogLine

_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):$")
_FRAME = re.compile(r'  (?:File "|<|\.\.\.)')


@dataclass(frozen=True)
class StackDump:
    """The stacks of all threads of a process at one moment."""

    rank: int
    """The rank of the process."""
    time_ms: int | None
    """The time of the first line, in epoch ms. None: unknown."""
    text: str
    """The stacks as printed."""


def find_stack_dumps(lines: Iterable[LogLine]) -> Iterator[StackDump]:
    """Yield the stacks in the lines of a log, in the order of their ends.

    Lines of other ranks may be in between. A line of the same rank that is neither the title of a
    thread, nor a frame, nor blank ends the stacks of the rank.
    """
    open_dumps: dict[int, list[LogLine]] = {}
    for line in lines:
        rank, text = line["rank"], line["text"]
        dump = open_dumps.get(rank)
        if _THREAD.match(text):
            open_dumps.setdefault(rank, []).append(line)
        elif dump is not None and (_FRAME.match(text) or not text.strip()):
            dump.append(line)
        elif dump is not None:
            yield _stack_dump(open_dumps.pop(rank))
    for dump in open_dumps.values():
        yield _stack_dump(dump)


def _stack_dump(lines: list[LogLine]) -> StackDump:
    text = "\n".join(line["text"] for line in lines).rstrip()
    return StackDump(lines[0]["rank"], lines[0]["time_ms"], text)
