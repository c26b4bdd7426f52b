"""Kinds of errors that functions may have on a busy machine, where answers come late. All other
errors are faults.
"""

import re
from collections.abc import Collection, Mapping
from typing import Final

# Patterns of expected errors in the format of `describe_error`, by kind.
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
# Answers of a failed tick: from Cloud Run on Google Cloud, from Lambda on AWS.
_FAILED_TICK: Final = re.compile(
    r"HTTP Error 500: Internal Server Error|tick failed: .*StepsFailed.*", re.DOTALL
)
# Lambda runs only the reserved number of ticks in parallel. Refused ticks are harmless, because the
# running ticks do the same work.
_REFUSED_TICK: Final = re.compile(
    r"An error occurred \(TooManyRequestsException\) when calling the Invoke operation.*"
)
# A step of a tick that failed or was not started.
_FAILED_STEP: Final = re.compile(
    r"tick: (?!a call )[a-z ]+ (failed|was not started)\b.*", re.DOTALL
)


def describe_error(function: str, message: str, trace: str) -> str:
    """Return a logged error, with the exception at the end of the trace."""
    lines = trace.strip().splitlines()
    starts = [n for n, line in enumerate(lines) if line and not line[0].isspace()]
    exception = "\n".join(lines[starts[-1] :]) if starts else ""
    return f"{function}: {message}" + (f"\n{exception}" if exception else "")


def find_unexpected_errors(failures: Collection[str], errors: Collection[str]) -> list[str]:
    """Return the failures of ticks and the logged `errors` without a known kind.

    The result includes a line with the number of failed ticks that no logged step explains.
    """
    begun = [failure for failure in failures if not _REFUSED_TICK.fullmatch(failure)]
    unexpected = [name for name in begun if not _FAILED_TICK.fullmatch(name)]
    unexpected += [
        error for error in errors if not any(kind.fullmatch(error) for kind in KINDS.values())
    ]
    explained = sum(bool(_FAILED_STEP.fullmatch(error)) for error in errors)
    if len(begun) > explained:
        unexpected.append(
            f"{len(begun)} ticks failed, and {explained} of their steps are in the log"
        )
    return unexpected
