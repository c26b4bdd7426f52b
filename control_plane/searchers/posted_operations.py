"""Operations that a user's search method posts, checked one by one: they may hold anything.

An error names the operation by its index, from 0; it never repeats a hyperparameter.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, NoReturn

# A new trial takes two parts and a message: so many fit into one commit with the mail it folds.
OPERATIONS_MAX = 12
HPARAMS_BYTES_MAX = 8 * 1024
HPARAMS_DEPTH_MAX = 16
LENGTH_MAX = (1 << 53) - 1

_SHOWN_CHARACTERS_MAX = 60
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class PostRefused(ValueError):
    """A post is refused as a whole. `code`: "conflict" where it comes at the wrong time."""

    def __init__(self, message: str, code: Literal["invalid", "conflict"] = "invalid") -> None:
        super().__init__(message)
        self.code = code


# `kind` has no default: what has one is not stored, and would not tell the types apart.
@dataclass(frozen=True, slots=True)
class CreateRequest:
    """Make a trial under a UUID of the method's choice, once."""

    kind: Literal["create"]
    request_id: str
    hparams: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ValidateAfterRequest:
    """Let the trial train to `length`, counted from its start, and validate there."""

    kind: Literal["validate_after"]
    request_id: str
    length: int


@dataclass(frozen=True, slots=True)
class CloseRequest:
    """Let the trial end once it has trained what it was asked for."""

    kind: Literal["close"]
    request_id: str


@dataclass(frozen=True, slots=True)
class ShutdownRequest:
    """End the search."""

    kind: Literal["shutdown"]
    cancel: bool = False
    failure: bool = False


@dataclass(frozen=True, slots=True)
class ProgressRequest:
    """How much of the search is done, in [0, 1]."""

    kind: Literal["set_searcher_progress"]
    progress: float


PostedOperation = (
    CreateRequest | ValidateAfterRequest | CloseRequest | ShutdownRequest | ProgressRequest
)


@dataclass(frozen=True, slots=True)
class PostedOperations:
    """Post number `post`, from 1: operations in order, and the event up to which all were seen."""

    post: int
    acknowledged: int
    operations: tuple[PostedOperation, ...] = ()


def parse_operations(operations: Sequence[object]) -> tuple[PostedOperation, ...]:
    """Parse the operations of a post; PostRefused for one that is wrong in any search."""
    if len(operations) > OPERATIONS_MAX:
        raise PostRefused(
            f"operations: {len(operations)} in one post, at most {OPERATIONS_MAX} are allowed; "
            "send the rest in further posts"
        )
    return tuple(
        _parse_operation(f"operations[{index}]", one) for index, one in enumerate(operations)
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
    # Not a number is not between anything.
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
    """Refuse a value that JSON cannot hold or that no trial can be given."""
    if depth == 0:
        raise PostRefused(f"{place:.80}: is nested more than {HPARAMS_DEPTH_MAX} deep")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _check_plain(f"{place}: a name", name)
            _check_value(f"{place}.{name:.40}", inner, depth - 1)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _check_value(f"{place}[{index}]", inner, depth - 1)
    else:
        _check_plain(place, value)


def _check_plain(place: str, value: object) -> None:
    match value:
        case bool() | None:
            fits = True
        case int():
            fits = -(1 << 63) <= value < 1 << 63
        case float():
            fits = isfinite(value)
        case str():
            # Half of a surrogate pair, which no trial could be told.
            fits = not any("\ud800" <= character <= "\udfff" for character in value)
        case _:
            fits = False
    if not fits:
        expected = "a finite number of at most 64 bits, text, true, false or null"
        raise PostRefused(f"{place:.80}: expected {expected}")


def _refuse(place: str, value: object, expected: str) -> NoReturn:
    shown = ascii(value)
    if len(shown) > _SHOWN_CHARACTERS_MAX:
        shown = shown[:_SHOWN_CHARACTERS_MAX] + "..."
    raise PostRefused(f"{place}: got {shown}; expected {expected}")


def _type_text(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
