"""The differences of a replay: the first output for which today's code computes another value."""

from dataclasses import dataclass
from typing import Any

from control_plane.actors.step import CommandRefused
from control_plane.engine.actor_types import parse_json
from control_plane.engine.outputs import DELETED, output_digest
from control_plane.engine.reader import TornRead


@dataclass(frozen=True, slots=True)
class Difference:
    """The first output for which today's code computes another value."""

    revision: int
    """The revision of the head that the commit wrote."""
    message: str
    """The stored name of the message that causes the difference, several names, or ""."""
    field: str
    """The display name of the output and the path to the place inside its value."""
    recorded: object
    """The recorded JSON value, or a digest if the value is secret or no longer stored. None for no
    value.
    """
    replayed: object
    """The replayed JSON value or digest. None for no value."""


class DifferenceFound(Exception):
    """Ends a replay with the first difference."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(difference)
        self.difference = difference


class UnrecordedRead(TornRead):
    """Raised when today's code reads a row that the recorded commit did not read."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def difference_at(
    revision: int, message: str, field: str, recorded: object, replayed: object
) -> DifferenceFound:
    """Build the exception that ends the replay with this difference."""
    return DifferenceFound(Difference(revision, message, field, recorded, replayed))


def narrow_difference(
    revision: int, message: str, field: str, recorded: bytes | None, replayed: bytes | None
) -> DifferenceFound:
    """Build the exception for two values, narrowed to the first place that differs.

    Args:
        field: the display name of the output. The path of the place is appended.
    """
    recorded_value, replayed_value = displayed_value(recorded), displayed_value(replayed)
    path = field
    while (step := _first_step(recorded_value, replayed_value)) is not None:
        path = f"{path}.{step}"
        recorded_value, replayed_value = recorded_value[step], replayed_value[step]
    return difference_at(revision, message, path, recorded_value, replayed_value)


def _first_step(recorded_value: Any, replayed_value: Any) -> Any:
    """Return the first key or index at which two containers differ.

    Return None if the values are no containers, or have different keys or lengths.
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

    Return None for a missing or deleted output.
    """
    if output is None or output == DELETED:
        return None
    try:
        return parse_json(output)
    except ValueError:
        return output.decode() if output.isascii() else output_digest(output)


def failed_field(name: str, error: Exception) -> tuple[str, str]:
    """Return the field and the replayed text of the difference for an error.

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
    """Return an error as a line of at most 300 characters.

    Values that pydantic repeats in validation errors are left out.
    """
    errors = getattr(error, "errors", None)
    if errors is None:
        return f"{type(error).__name__}: {error}"[:300]
    faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in errors())
    return "; ".join(faults)[:300]
