"""Exit codes of every command, and what each means to a script."""

OK = 0
FAILED = 1
USAGE = 2
REFUSED = 3
UNREACHABLE = 4
INTERRUPTED = 130

EXIT_CODES = {
    OK: "it worked; what was waited for or followed ended COMPLETED",
    FAILED: "it failed here, ended in another state, or the answer to a question was no",
    USAGE: "the words mean nothing: a wrong command, option or value, or file to preview",
    REFUSED: "the cluster refused: not found, not allowed, invalid, or in the wrong state",
    UNREACHABLE: "no cluster is configured or runs here, or it gave no answer after retries",
    INTERRUPTED: "Ctrl-C",
}
