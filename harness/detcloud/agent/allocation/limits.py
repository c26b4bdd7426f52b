"""Limits of the work that an agent does for one allocation."""

GRACE_MS = 15_000
# The grace of an idle trial of an experiment, which may still save a checkpoint.
SAVING_GRACE_MS = 60_000
# The lines at the end of a log that are searched for the traceback of a failure.
TRACEBACK_LINES_MAX = 400
LINES_PER_SECOND = 1000.0
LINES_BURST = 5000.0
SCAN_BYTES = 64 * 1024
# The bytes that the agent searches for the ends of overlong lines of a running trial. Without a
# limit, a sparse file of a single trial would delay all other trials.
LOOK_BYTES_PER_SECOND = 8 << 20
LOOK_BYTES_BURST = 16 << 20
# The bytes of reports that a scan parses, of all writers of a trial together.
SCANNED_BYTES_MAX = 1 << 20
# The limit on notices about skipped lines that an agent's process writes to a trial's log.
WARNINGS_MAX = 10
