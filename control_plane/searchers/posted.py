"""What a user's search method posts, checked one by one: a stranger may have written any of it.

An error names the operation by its index, from 0; it never repeats a hyperparameter.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, NoReturn

# A new trial takes two parts and a message: so many fit into one commit beside the mail it folds.
OPERATIONS_MAX = 12
HPARAMS_BYTES_MAX = 8 * 1024
HPARAMS_DEPTH_MAX = 16
LENGTH_MAX = (1 << 53) - 1

_SHOWN_CHARACTERS_MAX = 60
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class PostRefused(ValueError):
    """A post that is refused as a whole. `code`: "conflict" where it comes at the wrong time."""

    def __init__(self, message: str, code: Literal["invalid", "conflict"] = "invalid") -> None:
        super().__init__(message)
        self.code = code


# `kind` has no default: what has one is not stored, and would not tell the types apart.
@dataclass(frozen=True, slots=True)
class CreateAsked:
    """Make a trial under a UUID of the method's choice, once."""

    kind: Literal["create"]
    request_id: str
    hparams: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ValidateAfterAsked:
    """Let the trial train to `length`, counted from its start, and validate there."""

    kind: Literal["validate_after"]
    request_id: str
    length: int


@dataclass(frozen=True, slots=True)
class CloseAsked:
    """Let the trial end once it has trained what it was asked for."""

    kind: Literal["close"]
    request_id: str


@dataclass(frozen=True, slots=True)
class ShutdownAsked:
    """End the search."""

    kind: Literal["shutdown"]
    cancel: bool = False
    failure: bool = False


@dataclass(frozen=True, slots=True)
class ProgressAsked:
    """How much of the search is done, in [0, 1]."""

    kind: Literal["set_searcher_progress"]
    progress: float


Asked = CreateAsked | ValidateAfterAsked | CloseAsked | ShutdownAsked | ProgressAsked


@dataclass(frozen=True, slots=True)
class Posted:
    """Post number `post`, from 1: operations in order, and the event up to which all were seen."""

    post: int
    acknowledged: int
    operations: tuple[Asked, ...] = ()


def asked(operations: Sequence[object]) -> tuple[Asked, ...]:
    """The operations of a post, from JSON values; PostRefused for what makes no sense alone."""
    if len(operations) > OPERATIONS_MAX:
        raise PostRefused(
            f"operations: {len(operations)} in one post, at most {OPERATIONS_MAX} are allowed; "
            "send the others in further posts"
        )
    return tuple(_asked(f"operations[{index}]", one) for index, one in enumerate(operations))


def _asked(place: str, operation: object) -> Asked:
    if not isinstance(operation, Mapping):
        _refuse(place, operation, "an object with a type")
    kind = operation.get("type")
    if not isinstance(kind, str) or kind not in _KINDS:
        _refuse(f"{place}.type", kind, f"one of {', '.join(_KINDS)}")
    known, read = _KINDS[kind]
    for name in operation:
        if name != "type" and name not in known:
            fields = ", ".join(known)
            raise PostRefused(f"{place}.{name:.40}: is not known; {kind} takes {fields}")
    return read(place, operation)


def _create(place: str, operation: Mapping[str, Any]) -> Asked:
    return CreateAsked("create", _request_id(place, operation), _hparams(place, operation))


def _validate_after(place: str, operation: Mapping[str, Any]) -> Asked:
    length = operation.get("length")
    if type(length) is not int or not 1 <= length <= LENGTH_MAX:
        _refuse(f"{place}.length", length, f"an integer from 1 to {LENGTH_MAX}")
    return ValidateAfterAsked("validate_after", _request_id(place, operation), length)


def _close(place: str, operation: Mapping[str, Any]) -> Asked:
    return CloseAsked("close", _request_id(place, operation))


def _shutdown(place: str, operation: Mapping[str, Any]) -> Asked:
    cancel, failure = operation.get("cancel", False), operation.get("failure", False)
    for name, value in (("cancel", cancel), ("failure", failure)):
        if not isinstance(value, bool):
            _refuse(f"{place}.{name}", value, "true or false")
    return ShutdownAsked("shutdown", cancel, failure)


def _progress(place: str, operation: Mapping[str, Any]) -> Asked:
    share = operation.get("progress")
    is_number = isinstance(share, int | float) and not isinstance(share, bool)
    # Not a number is not between anything.
    if share is None or not is_number or not 0 <= share <= 1:
        _refuse(f"{place}.progress", share, "a number from 0 to 1")
    return ProgressAsked("set_searcher_progress", float(share))


_KINDS: Mapping[str, tuple[tuple[str, ...], Callable[[str, Mapping[str, Any]], Asked]]] = {
    "create": (("request_id", "hparams"), _create),
    "validate_after": (("request_id", "length"), _validate_after),
    "close": (("request_id",), _close),
    "shutdown": (("cancel", "failure"), _shutdown),
    "set_searcher_progress": (("progress",), _progress),
}


def _request_id(place: str, operation: Mapping[str, Any]) -> str:
    given = operation.get("request_id")
    if not isinstance(given, str) or not _UUID.fullmatch(given):
        _refuse(f"{place}.request_id", given, "a UUID like 3f2b8c1e-0000-4000-8000-000000000001")
    return given.lower()


def _hparams(place: str, operation: Mapping[str, Any]) -> Mapping[str, object]:
    place, hparams = f"{place}.hparams", operation.get("hparams")
    if not isinstance(hparams, Mapping):
        raise PostRefused(
            f"{place}: got {_kind_of(hparams)}; expected an object of names to values"
        )
    _check_value(place, hparams, HPARAMS_DEPTH_MAX)
    size = len(json.dumps(hparams, separators=(",", ":")).encode())
    if size > HPARAMS_BYTES_MAX:
        raise PostRefused(f"{place}: has {size} bytes, at most {HPARAMS_BYTES_MAX} are allowed")
    return hparams


def _check_value(place: str, value: object, depth: int) -> None:
    """Whether JSON can hold it and a trial can be given it."""
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


def _kind_of(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
