"""Exit codes of every command, and what each means to a script."""

OK = 0
FAILED = 1
USAGE = 2
REFUSED = 3
UNREACHABLE = 4
TIMED_OUT = 5
INTERRUPTED = 130

EXIT_CODES = {
    OK: "success; the experiment that was waited for or followed ended COMPLETED",
    FAILED: "a local failure, an experiment that ended in another state, or a question "
    "answered with no",
    USAGE: "a usage error: a wrong command, option or value, or file to preview",
    REFUSED: "the cluster refused the request: not found, not allowed, invalid, or in the "
    "wrong state",
    UNREACHABLE: "no cluster is configured or running, or it did not respond after retries",
    TIMED_OUT: "the time of `wait --timeout` has passed; the experiment continues",
    INTERRUPTED: "Ctrl-C",
}
