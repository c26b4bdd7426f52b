"""Conversion of a configuration's problems to the error of a request."""

from control_plane.config.problems import ConfigInvalid
from control_plane.errors import Code, Detail, RequestError

DETAILS_MAX = 200


def config_error(
    error: ConfigInvalid, message: str = "the configuration is not valid"
) -> RequestError:
    """Return RequestError invalid with a configuration's first DETAILS_MAX problems as details.

    The message is `message`; with more problems, it also names their number.
    """
    details = [
        Detail(problem.path, problem.message, problem.line, problem.hint or None)
        for problem in error.problems[:DETAILS_MAX]
    ]
    if len(error.problems) > DETAILS_MAX:
        message += f": {len(error.problems)} problems, of which these are the first {DETAILS_MAX}"
    return RequestError(Code.INVALID, message, details)
