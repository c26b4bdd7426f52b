"""Finding the function that handles a message: the calls of a `step` are recorded and searched."""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from textwrap import dedent
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ACTORS = "control_plane/actors/"
# The pure functions that decide for the actors, by folder.
DECISIONS = {
    "control_plane/searchers/": ("first_step", "on_event"),
    "control_plane/scheduling/": ("schedule_jobs",),
}

# The functions that get each message of an actor after the handler.
OBSERVERS = frozenset({"track_replacement", "write_spans"})


@dataclass(frozen=True)
class Place:
    """A function of the product."""

    name: str
    """The qualified name."""
    file: str
    """The path below the repository."""
    line: int
    """The line of the definition."""


@dataclass(eq=False)
class Call:
    """A recorded call of a function of the product."""

    code: CodeType
    has_message: bool
    """Whether the message is one of the arguments."""
    calls: list["Call"] = field(default_factory=list)
    """The calls that this function made directly, in order."""
    returned: object = None


def place_of(code: CodeType) -> Place:
    """Return the place of a function."""
    return Place(code.co_qualname, file_of(code), code.co_firstlineno)


def file_of(code: CodeType) -> str:
    """Return the path of a function's file below the repository, or "" for other files."""
    path = Path(code.co_filename)
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""


def record_call(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Call]:
    """Call a function of the control plane; return the result and the recorded call.

    The second argument is the message: each recorded call notes whether this object was an
    argument.
    """
    message = arguments[1]
    root = Call(record_call.__code__, True)
    open_calls = dict[FrameType, Call]()

    def record(frame: FrameType, event: str, value: object) -> None:
        if event == "call" and file_of(frame.f_code).startswith("control_plane/"):
            caller = frame.f_back
            while caller is not None and caller not in open_calls:
                caller = caller.f_back
            has_message = any(argument is message for argument in frame.f_locals.values())
            call = Call(frame.f_code, has_message)
            (root if caller is None else open_calls[caller]).calls.append(call)
            open_calls[frame] = call
        elif event == "return" and frame in open_calls:
            open_calls.pop(frame).returned = value

    before = sys.getprofile()
    sys.setprofile(record)
    try:
        result = function(*arguments)
    finally:
        sys.setprofile(before)
    return result, root.calls[0]


def handler_of(step: Call) -> Place:
    """Return the function that handles the message of a recorded step.

    Functions with a `match` statement only choose another function, and are skipped.
    """
    handler, chosen = step, _chosen_call(step)
    while chosen is not None:
        handler = chosen
        chosen = _chosen_call(handler) if _has_match(handler.code) else None
    return place_of(handler.code)


def decisions_of(step: Call) -> list[Place]:
    """Return the functions of DECISIONS that a recorded step called, each once."""
    return list(dict.fromkeys(place_of(call.code) for call in _deciding_calls(step)))


def _chosen_call(call: Call) -> Call | None:
    """Return the call to which a function passed the message, within the folder of the function.

    If several calls got the message, prefer a call whose result the function returned. If no call
    got the message, return the last call whose result the function returned, or None.
    """
    folder = file_of(call.code).rpartition("/")[0] + "/"
    inside = [
        inner
        for inner in call.calls
        if file_of(inner.code).startswith(folder) and inner.code.co_name not in OBSERVERS
    ]
    passing = [inner for inner in inside if inner.has_message]
    returning = [inner for inner in inside if inner.returned is call.returned]
    both = [inner for inner in passing if inner in returning]
    return next(iter([*both[-1:], *passing[-1:], *returning[-1:]]), None)


def _deciding_calls(call: Call) -> Iterator[Call]:
    """Yield the outermost calls of functions of DECISIONS."""
    for inner in call.calls:
        file, name = file_of(inner.code), inner.code.co_name
        if any(file.startswith(folder) and name in DECISIONS[folder] for folder in DECISIONS):
            yield inner
        else:
            yield from _deciding_calls(inner)


@cache
def _has_match(code: CodeType) -> bool:
    """Return whether a function contains a `match` statement."""
    tree = ast.parse(dedent(inspect.getsource(code)))
    return any(isinstance(node, ast.Match) for node in ast.walk(tree))
