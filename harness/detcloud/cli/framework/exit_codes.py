"""Exit codes of all commands, with the meaning of each."""

OK = 0
FAILED = 1
USAGE = 2
REFUSED = 3
UNREACHABLE = 4
TIMED_OUT = 5
INTERRUPTED = 130

EXIT_CODES = {
    OK: "success; `wait` and `follow`: the experiment finished",
    FAILED: "a local failure, a followed experiment that ended in another state, or a question "
    "answered with no",
    USAGE: "a usage error: a wrong command, option or value, or file to preview",
    REFUSED: "the cluster refused the request: not found, not allowed, invalid, or in the "
    "wrong state",
    UNREACHABLE: "no cluster is configured or running, or it did not respond after retries",
    TIMED_OUT: "the time limit of `wait --timeout` has passed; the experiment continues",
    INTERRUPTED: "Ctrl-C",
}
"""The meaning of each exit code, for help texts."""
