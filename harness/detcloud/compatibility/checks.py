"""Determined's `common.check`: functions that raise DetcloudError if a condition is false."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from detcloud.shared.errors import DetcloudError
from detcloud.shared.parameter_names import accept_names

Check = Callable[..., None]
CheckFailedError = DetcloudError


def _comparison(
    name: str, holds: Callable[[Any, Any], bool], first: str = "val", second: str = "expected"
) -> Check:
    """Return a check of two values. The check raises DetcloudError with both values and the reason.

    `first` and `second` are the parameters' names for callers that pass values by name.
    """
    renamed = ((first, "val"), (second, "expected"))

    @accept_names(**{theirs: ours for theirs, ours in renamed if theirs != ours})
    def check(val: Any, expected: Any, reason: str | None = None) -> None:
        if not holds(val, expected):
            text = f"check {name} failed: {val!r:.200} and {expected!r:.200}"
            raise DetcloudError(f"{text}: {reason}" if reason else text)

    return check


def _condition(name: str, holds: Callable[[Any], bool]) -> Check:
    """Return a check of a single value. The check raises DetcloudError with the value and the
    reason.
    """
    compare = _comparison(name, lambda val, _: holds(val))

    def check(val: Any, reason: str | None = None) -> None:
        compare(val, True, reason)

    return check


true = check_true = _condition("true", bool)
false = check_false = _condition("false", operator.not_)
is_none = check_none = _condition("is_none", lambda val: val is None)
is_not_none = check_not_none = _condition("is_not_none", lambda val: val is not None)
eq = check_eq = _comparison("eq", operator.eq)
not_eq = check_not_eq = _comparison("not_eq", operator.ne, "x", "y")
gt = check_gt = _comparison("gt", operator.gt, "x", "y")
gt_eq = check_gt_eq = _comparison("gt_eq", operator.ge, "x", "y")
lt = check_lt = _comparison("lt", operator.lt, "x", "y")
lt_eq = check_lt_eq = _comparison("lt_eq", operator.le, "x", "y")
len_eq = check_len = _comparison(
    "len_eq", lambda val, length: len(val) == length, second="expected_len"
)
equal_lengths = check_eq_len = _comparison("equal_lengths", lambda x, y: len(x) == len(y), "x", "y")
is_in = check_in = _comparison("is_in", lambda val, among: val in among)
not_in = check_not_in = _comparison("not_in", lambda val, among: val not in among)
is_type = check_type = _comparison("is_type", lambda val, kind: type(val) is kind)
is_instance = check_isinstance = _comparison("is_instance", isinstance)
is_not_instance = check_not_isinstance = _comparison(
    "is_not_instance", lambda val, kind: not isinstance(val, kind)
)
is_subclass = check_issubclass = _comparison("is_subclass", issubclass)
