"""The parser of the operations that a user's search method posts. The input is untrusted.

An error message names the operation by its index, from 0. No message repeats a hyperparameter.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, NoReturn

from control_plane.storable_text import is_storable_text
from detcloud.shared.articles import with_article
from detcloud.shared.dotted_paths import name_text

# Creating a trial writes two parts and a message. Twelve fit into one commit, together with the
# messages that the commit consumes.
OPERATIONS_MAX = 12
HPARAMS_BYTES_MAX = 8 * 1024
HPARAMS_DEPTH_MAX = 16
LENGTH_MAX = (1 << 53) - 1

_SHOWN_CHARACTERS_MAX = 60
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class PostRefused(ValueError):
    """The refusal of a whole post, with a message to the user."""

    def __init__(self, message: str, code: Literal["invalid", "conflict"] = "invalid") -> None:
        """Set the message and the code.

        "conflict": the number of the post does not follow the latest post. "invalid": an error in
        the post.
        """
        super().__init__(message)
        self.code = code


# `kind` has no default, because a stored message omits fields with default values, and `kind`
# identifies the type of a stored operation.
@dataclass(frozen=True, slots=True)
class CreateRequest:
    """A request to create a trial with a UUID that the method chose.

    A repetition with the same hyperparameters has no effect.
    """

    kind: Literal["create"]
    request_id: str
    hparams: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ValidateAfterRequest:
    """A request to train a trial to `length`, counted from the trial's start, and to validate."""

    kind: Literal["validate_after"]
    request_id: str
    length: int


@dataclass(frozen=True, slots=True)
class CloseRequest:
    """A request to end a trial after the last training that was requested."""

    kind: Literal["close"]
    request_id: str


@dataclass(frozen=True, slots=True)
class ShutdownRequest:
    """A request to end the search."""

    kind: Literal["shutdown"]
    cancel: bool = False
    """Whether the experiment ends as canceled."""
    failure: bool = False
    """Whether the experiment ends with an error."""


@dataclass(frozen=True, slots=True)
class ProgressRequest:
    """A report of the search's progress."""

    kind: Literal["set_searcher_progress"]
    progress: float
    """The completed share of the search, in [0, 1]."""


PostedOperation = (
    CreateRequest | ValidateAfterRequest | CloseRequest | ShutdownRequest | ProgressRequest
)


@dataclass(frozen=True, slots=True)
class PostedOperations:
    """A post of a user's search method."""

    post: int
    """The number of the post, from 1."""
    acknowledged: int
    """The number of the latest event that the method has processed; 0 for no event."""
    operations: tuple[PostedOperation, ...] = ()
    """In the order of execution."""


def parse_operations(operations: Sequence[object]) -> tuple[PostedOperation, ...]:
    """Parse the operations of a post. Checks that depend on the state of the search come later.

    Raises:
        PostRefused: an operation is malformed, or the post has more than OPERATIONS_MAX operations.
    """
    if len(operations) > OPERATIONS_MAX:
        raise PostRefused(
            f"operations: {len(operations)} in one post, at most {OPERATIONS_MAX} are allowed; "
            "send the rest in further posts"
        )
    return tuple(
        _parse_operation(f"operations[{index}]", operation)
        for index, operation in enumerate(operations)
    )


def _parse_operation(place: str, operation: object) -> PostedOperation:
    if not isinstance(operation, Mapping):
        _refuse(place, operation, "an object with a type")
    kind = operation.get("type")
    if not isinstance(kind, str) or kind not in _PARSERS:
        _refuse(f"{place}.type", kind, f"one of {', '.join(_PARSERS)}")
    known, parse = _PARSERS[kind]
    for name in operation:
        if name != "type" and name not in known:
            fields = ", ".join(known)
            raise PostRefused(f"{place}.{name:.40}: is not known; {kind} takes {fields}")
    return parse(place, operation)


def _parse_create(place: str, operation: Mapping[str, Any]) -> PostedOperation:
    return CreateRequest(
        "create", _parse_request_id(place, operation), _parse_hparams(place, operation)
    )


def _parse_validate_after(place: str, operation: Mapping[str, Any]) -> PostedOperation:
    length = operation.get("length")
    if type(length) is not int or not 1 <= length <= LENGTH_MAX:
        _refuse(f"{place}.length", length, f"an integer from 1 to {LENGTH_MAX}")
    return ValidateAfterRequest("validate_after", _parse_request_id(place, operation), length)


def _parse_close(place: str, operation: Mapping[str, Any]) -> PostedOperation:
    return CloseRequest("close", _parse_request_id(place, operation))


def _parse_shutdown(place: str, operation: Mapping[str, Any]) -> PostedOperation:
    cancel, failure = operation.get("cancel", False), operation.get("failure", False)
    for name, value in (("cancel", cancel), ("failure", failure)):
        if not isinstance(value, bool):
            _refuse(f"{place}.{name}", value, "true or false")
    return ShutdownRequest("shutdown", cancel, failure)


def _parse_progress(place: str, operation: Mapping[str, Any]) -> PostedOperation:
    share = operation.get("progress")
    is_number = isinstance(share, int | float) and not isinstance(share, bool)
    # Written so that NaN is refused, too: any comparison with NaN is False.
    if share is None or not is_number or not 0 <= share <= 1:
        _refuse(f"{place}.progress", share, "a number from 0 to 1")
    return ProgressRequest("set_searcher_progress", float(share))


_PARSERS: Mapping[
    str, tuple[tuple[str, ...], Callable[[str, Mapping[str, Any]], PostedOperation]]
] = {
    "create": (("request_id", "hparams"), _parse_create),
    "validate_after": (("request_id", "length"), _parse_validate_after),
    "close": (("request_id",), _parse_close),
    "shutdown": (("cancel", "failure"), _parse_shutdown),
    "set_searcher_progress": (("progress",), _parse_progress),
}


def _parse_request_id(place: str, operation: Mapping[str, Any]) -> str:
    request_id = operation.get("request_id")
    if not isinstance(request_id, str) or not _UUID.fullmatch(request_id):
        _refuse(
            f"{place}.request_id", request_id, "a UUID like 3f2b8c1e-0000-4000-8000-000000000001"
        )
    return request_id.lower()


def _parse_hparams(place: str, operation: Mapping[str, Any]) -> Mapping[str, object]:
    place, hparams = f"{place}.hparams", operation.get("hparams")
    if not isinstance(hparams, Mapping):
        raise PostRefused(
            f"{place}: got {_type_text(hparams)}; expected an object of names to values"
        )
    _check_value(place, hparams, HPARAMS_DEPTH_MAX)
    size = len(json.dumps(hparams, separators=(",", ":")).encode())
    if size > HPARAMS_BYTES_MAX:
        raise PostRefused(f"{place}: has {size} bytes, at most {HPARAMS_BYTES_MAX} are allowed")
    return hparams


def _check_value(place: str, value: object, depth: int) -> None:
    """Raise PostRefused for a value that JSON cannot represent or that is not allowed for trials.

    `depth` is the number of allowed levels of maps and lists, the value included.
    """
    if depth == 0:
        raise PostRefused(f"{place:.80}: is nested more than {HPARAMS_DEPTH_MAX} deep")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _check_plain(f"{place}: a name", name)
            _check_value(f"{place}.{name_text(name[:40])}", inner, depth - 1)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _check_value(f"{place}[{index}]", inner, depth - 1)
    else:
        _check_plain(place, value)


def _check_plain(place: str, value: object) -> None:
    """Raise PostRefused unless the value is None, a boolean, or a storable number or text."""
    match value:
        case bool() | None:
            fits = True
        case int():
            fits = -(1 << 63) <= value < 1 << 63
        case float():
            fits = isfinite(value)
        case str():
            fits = is_storable_text(value)
        case _:
            fits = False
    if not fits:
        expected = "a finite number of at most 64 bits, text without NUL, true, false or null"
        raise PostRefused(f"{place:.80}: expected {expected}")


def _refuse(place: str, value: object, expected: str) -> NoReturn:
    """Raise PostRefused with the value, shortened, and the expectation."""
    shown = ascii(value)
    if len(shown) > _SHOWN_CHARACTERS_MAX:
        shown = shown[:_SHOWN_CHARACTERS_MAX] + "..."
    raise PostRefused(f"{place}: got {shown}; expected {expected}")


def _type_text(value: object) -> str:
    """Return the name of a value's Python type with the article, such as "a dict" or "an int".

    The name of None is "nothing".
    """
    return "nothing" if value is None else with_article(type(value).__name__)
