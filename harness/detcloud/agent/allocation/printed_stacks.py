"""Stacks that processes of a trial print to the log after the signal of the agent."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from detcloud.shared.stack_signal import STACK_SIGNAL

if TYPE_CHECKING:
    from collections.abc import Iterable

_RANK = re.compile(r"\[rank=(\d{1,6})\] ?")
_FRAME = re.compile(r'  File "(?P<path>[^"]*)", line (?P<line>\d+) in (?P<function>\S+)')
_CURRENT = "Current thread "
_CODE_FOLDERS = ("/code/",)


def request_stacks(processes: Iterable[int]) -> int:
    """Send the signal to each process that handles the signal, and return their number.

    A process without a handler would end by the signal, so that it gets none. Ended processes and
    foreign processes are skipped.
    """
    sent = 0
    for process in processes:
        try:
            if STACK_SIGNAL and _handles_signal(process):
                os.kill(process, STACK_SIGNAL)
                sent += 1
        except OSError:
            continue
    return sent


def parse_places(text: str, own_rank: int) -> dict[int, str]:
    """Return the place of the main thread of each process in printed stacks, by rank.

    The place is the innermost frame, followed by the innermost frame of the model code. Lines
    without a rank belong to `own_rank`.

    Args:
        text: the part of the log after the signal.
        own_rank: the rank of a node's single process.
    """
    lines: dict[int, list[str]] = {}
    for line in text.splitlines():
        match = _RANK.match(line)
        rank = int(match[1]) if match else own_rank
        lines.setdefault(rank, []).append(line[match.end() :] if match else line)
    places = {rank: _main_place(own) for rank, own in lines.items()}
    return {rank: place for rank, place in places.items() if place}


def _main_place(lines: list[str]) -> str:
    """Return the place of the thread that handled the signal, the main thread. "" without one."""
    starts = [number for number, line in enumerate(lines) if line.startswith(_CURRENT)]
    if not starts:
        return ""
    frames = []
    for line in lines[starts[-1] + 1 :]:
        match = _FRAME.match(line)
        if match is None:
            break
        frames.append(match)
    if not frames:
        return ""
    own = next((frame for frame in frames if _is_model_code(frame["path"])), None)
    place = _frame_text(frames[0])
    return place if own in (None, frames[0]) else f"{place}, called at {_frame_text(own)}"


def _frame_text(frame: re.Match[str]) -> str:
    return f"{Path(frame['path']).name}:{frame['line']} {frame['function']}"


def _is_model_code(path: str) -> bool:
    return any(folder in path for folder in _CODE_FOLDERS) and "site-packages" not in path


def _handles_signal(process: int) -> bool:
    """Return whether a process handles the signal. Raise OSError for an ended process."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "SigCgt":
            return bool(int(value, 16) >> (STACK_SIGNAL - 1) & 1)
    return False
