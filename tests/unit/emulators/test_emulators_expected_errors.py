"""The recognition of expected and unexpected errors in the logs of a test cluster."""

import pytest

from tests.emulators.expected_errors import KINDS, describe_error, find_unexpected_errors

TRACE = """Traceback (most recent call last):
  File "/function/lambdas/tick_steps.py", line 153, in _run_due_steps
    done.again_ms = max(done.again_ms, step.run() or 0)
{exception}"""
UNAVAILABLE = "control_plane.state.table.Unavailable: 429 (8 tries)"
STEPS = "lambdas.tick_steps.StepsFailed: failed: leases, lost agents"
TICK = describe_error("tick", "a call failed", TRACE.format(exception=STEPS))
EXPECTED = [
    TICK,
    describe_error("tick", "lost agents was not started: only 900 ms are left", ""),
    describe_error("tick", "leases failed", TRACE.format(exception=UNAVAILABLE)),
    describe_error(
        "tick",
        "collection failed",
        TRACE.format(exception="OSError: http://127.0.0.1:9 was not invoked: timed out"),
    ),
    describe_error(
        "tick", "the API does not respond, so no agent is marked as lost: timed out", ""
    ),
]
ON_GOOGLE = "HTTP Error 500: Internal Server Error"
REFUSED = (
    "An error occurred (TooManyRequestsException) when calling the Invoke operation (reached max "
    "retries: 0): Rate Exceeded."
)
ON_AWS = "tick failed: {'errorType': 'StepsFailed', 'errorMessage': 'failed: leases'}"


def test_each_kind_of_expected_error_is_recognized() -> None:
    assert find_unexpected_errors([ON_GOOGLE], EXPECTED) == []
    assert find_unexpected_errors([ON_AWS], EXPECTED) == []
    # A throttled call logs nothing.
    assert find_unexpected_errors([REFUSED], []) == []
    matched = {name for name, kind in KINDS.items() if any(map(kind.fullmatch, EXPECTED))}
    assert matched == set(KINDS)


@pytest.mark.parametrize(
    ("function", "message", "exception"),
    [
        ("tick", "leases failed", "KeyError: 'gpus'"),
        ("tick", "collection failed", "OSError: disk full"),
        ("api", "request failed", "ValueError: Unavailable: 429"),
        # A different exception that quotes the expected one.
        ("tick", "leases failed", f"RuntimeError: {UNAVAILABLE}"),
        ("advance", "trial#1 cannot fold M#1", ""),
    ],
)
def test_unexpected_errors_are_returned(function: str, message: str, exception: str) -> None:
    error = describe_error(function, message, TRACE.format(exception=exception))
    assert find_unexpected_errors([], [error]) == [error]


def test_unexplained_tick_failures_are_returned() -> None:
    assert find_unexpected_errors(["timed out"], EXPECTED) == ["timed out"]
    # The log has a failed tick without a failed step.
    silent = find_unexpected_errors([ON_GOOGLE, ON_GOOGLE], EXPECTED[:2])
    assert silent == ["2 ticks failed, and 1 of their steps are in the log"]
