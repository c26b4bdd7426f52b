"""The differences of a replay: the first output for which today's code computes another value."""

from dataclasses import dataclass
from typing import Any

from control_plane.actors.step import CommandRefused
from control_plane.engine.actor_types import parse_json
from control_plane.engine.outputs import DELETED, output_digest
from control_plane.engine.reader import TornRead


@dataclass(frozen=True, slots=True)
class Difference:
    """The first output for which today's code computes another value, or the reason why the replay
    ends.
    """

    revision: int
    """The revision of the head that the commit wrote. 0 for an unknown type of actor."""
    message: str
    """The stored name of the message that causes the difference, or several names. "" if the
    difference is not in the commit of an entry.
    """
    field: str
    """The display name of the output, and the path to the place inside its value. For other faults
    a word such as `head`, `journal`, `error` or `reply`.
    """
    recorded: object
    """The recorded JSON value, or a digest if the value is secret or no longer stored. None for no
    value. For other faults a text about the recorded commit.
    """
    replayed: object
    """The replayed JSON value or digest, or a text about the fault. None for no value."""


class DifferenceFound(Exception):
    """The end of a replay at the first difference."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(difference)
        self.difference = difference


class UnrecordedRead(TornRead):
    """A read of a row that the recorded commit did not read. `name` is the `partition/sort`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def difference_at(
    revision: int, message: str, field: str, recorded: object, replayed: object
) -> DifferenceFound:
    """Build the exception that ends the replay with this difference. The caller raises the
    exception.
    """
    return DifferenceFound(Difference(revision, message, field, recorded, replayed))


def narrow_difference(
    revision: int, message: str, field: str, recorded: bytes | None, replayed: bytes | None
) -> DifferenceFound:
    """Build the exception for two values that differ, narrowed to the first place that differs.

    The values in the exception are parsed JSON. The caller raises the exception.

    Args:
        field: the display name of the output. The path of the place is appended, such as
            `.slots.0`.
        recorded: the encoded value, or None for no value.
        replayed: the encoded value, or None for no value.
    """
    recorded_value, replayed_value = displayed_value(recorded), displayed_value(replayed)
    path = field
    while (step := _first_step(recorded_value, replayed_value)) is not None:
        path = f"{path}.{step}"
        recorded_value, replayed_value = recorded_value[step], replayed_value[step]
    return difference_at(revision, message, path, recorded_value, replayed_value)


def _first_step(recorded_value: Any, replayed_value: Any) -> Any:
    """Return the first key or index, in the order of `recorded_value`, at which two dicts or two
    lists differ.

    Return None if the values are equal, are not two dicts or two lists, or have different keys or
    lengths.
    """
    if (
        isinstance(recorded_value, dict)
        and isinstance(replayed_value, dict)
        and recorded_value.keys() == replayed_value.keys()
    ):
        return next(
            (key for key in recorded_value if recorded_value[key] != replayed_value[key]), None
        )
    if (
        isinstance(recorded_value, list)
        and isinstance(replayed_value, list)
        and len(recorded_value) == len(replayed_value)
    ):
        return next(
            (
                place
                for place, _ in enumerate(recorded_value)
                if recorded_value[place] != replayed_value[place]
            ),
            None,
        )
    return None


def displayed_value(output: bytes | None) -> Any:
    """Return an output for display: the JSON value, else ASCII text, else a digest of the bytes.

    The digest is the first eight hexadecimal digits of the SHA-256. Return None for a missing or
    deleted output.
    """
    if output is None or output == DELETED:
        return None
    try:
        return parse_json(output)
    except ValueError:
        return output.decode() if output.isascii() else output_digest(output)


def failed_field(name: str, error: Exception) -> tuple[str, str]:
    """Return the field and the replayed text of the difference for an error of a fold.

    The field is `row` with a name for an unrecorded read, `message` for an unknown message, `reply`
    for a refused command, and otherwise `error`.

    Args:
        name: the stored name of the message that could not be folded.
    """
    match error:
        case UnrecordedRead():
            return f"row {error.name}", "reads a row that was not read at that time"
        case KeyError() if error.args == (name,):
            return "message", "is not a message of this version"
        case CommandRefused():
            return "reply", f"refused: {error}"
        case _:
            return "error", error_line(error)


def error_line(error: Exception) -> str:
    """Return the type and the text of an error, cut off after 300 characters.

    For a validation error of pydantic, return the place and text of each fault without the type.
    The invalid values, which may be secret, are left out.
    """
    errors = getattr(error, "errors", None)
    if errors is None:
        return f"{type(error).__name__}: {error}"[:300]
    faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in errors())
    return "; ".join(faults)[:300]
