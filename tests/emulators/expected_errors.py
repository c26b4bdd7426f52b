"""Errors that the functions of a cluster may have on this machine, which may be so busy that an
answer comes too late: a list of kinds. Any other error is a fault of ours.
"""

import re
from collections.abc import Collection, Mapping
from typing import Final

# By what they are, the kinds of errors as `describe_error` has them.
KINDS: Final[Mapping[str, re.Pattern[str]]] = {
    "a tick some of whose steps failed, of which each has a line of its own": re.compile(
        r"tick: .*lambdas\.tick_steps\.StepsFailed: failed: [a-z, ]+", re.DOTALL
    ),
    "a step that the tick had no time for": re.compile(
        r"tick: [a-z ]+ was not started: only -?\d+ ms are left"
    ),
    "a table that did not answer in time": re.compile(
        r"\w+: [^\n]+\ncontrol_plane\.state\.table\.Unavailable: .*"
    ),
    "a function that did not begin in time": re.compile(
        r"tick: (suggestions|collection) failed\nOSError: \S+ was not invoked: .*"
    ),
    "an API that did not answer the tick's probe in time": re.compile(
        r"tick: the API does not respond, so no agent is marked as lost: .*"
    ),
}
# What a tick that failed is answered with: on Google Cloud by Cloud Run, on AWS by Lambda.
_FAILED_TICK: Final = re.compile(
    r"HTTP Error 500: Internal Server Error|tick failed: .*StepsFailed.*", re.DOTALL
)
# Lambda runs no more ticks at once than are reserved for it: those that run do the same work.
_REFUSED_TICK: Final = re.compile(
    r"An error occurred \(TooManyRequestsException\) when calling the Invoke operation.*"
)
# A step of a tick that failed, or that was not begun.
_FAILED_STEP: Final = re.compile(
    r"tick: (?!a call )[a-z ]+ (failed|was not started)\b.*", re.DOTALL
)


def describe_error(function: str, message: str, trace: str) -> str:
    """Return an error that a function logged, with the exception at the end of its trace."""
    lines = trace.strip().splitlines()
    starts = [n for n, line in enumerate(lines) if line and not line[0].isspace()]
    exception = "\n".join(lines[starts[-1] :]) if starts else ""
    return f"{function}: {message}" + (f"\n{exception}" if exception else "")


def find_unexpected_errors(failures: Collection[str], errors: Collection[str]) -> list[str]:
    """Return what is of no kind that is known, of what ticks `failures` and what functions logged
    as `errors`; and how many ticks failed of which no log says why.
    """
    begun = [failure for failure in failures if not _REFUSED_TICK.fullmatch(failure)]
    found = [name for name in begun if not _FAILED_TICK.fullmatch(name)]
    found += [
        error for error in errors if not any(kind.fullmatch(error) for kind in KINDS.values())
    ]
    explained = sum(bool(_FAILED_STEP.fullmatch(error)) for error in errors)
    if len(begun) > explained:
        found.append(f"{len(begun)} ticks failed, and {explained} of their steps are in the log")
    return found
