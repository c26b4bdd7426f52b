"""Logs of the deployed functions in the form of Cloud Logging: a JSON object per line.

A line names the trace of its request. Metrics are fields of log lines, from which Cloud Logging
computes the values. https://cloud.google.com/logging/docs/structured-logging
"""

import json
import logging
import os
import re
import sys
from collections.abc import Mapping
from contextvars import ContextVar

from control_plane.api.access_log import redact

TRACE = "logging.googleapis.com/trace"
SPAN = "logging.googleapis.com/spanId"
LABELS = "logging.googleapis.com/labels"
# The trace and span in X-Cloud-Trace-Context, which Cloud Run sets, and in the standard header
# traceparent.
_CLOUD_TRACE = re.compile(r"([0-9a-f]{32})(?:/(\d{1,20}))?(?:;.*)?")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")

_request_trace: ContextVar[Mapping[str, str]] = ContextVar("request_trace")


class Telemetry:
    """The logs of the function `service`.

    The constructor sends all logs of the process to stdout as JSON lines: from level INFO, and from
    WARNING for urllib3, google and uvicorn. It removes other handlers of the root logger.
    """

    def __init__(self, service: str) -> None:
        self._logger = logging.getLogger(f"lambdas.gcp.{service}")
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(CloudLines(service))
        root = logging.getLogger()
        root.handlers[:] = [handler]
        root.setLevel(logging.INFO)
        for name in ("urllib3", "google", "uvicorn"):
            logging.getLogger(name).setLevel(logging.WARNING)

    def begin_request(self, headers: Mapping[str, str]) -> None:
        """Assign the following log lines of this request to the trace in the headers.

        Headers without a trace remove the assignment. The assignment holds for the current context
        (contextvars).
        """
        _request_trace.set(trace_fields(headers, os.environ.get("DETCLOUD_PROJECT", "")))

    def log_line(self, message: str, /, **fields: object) -> None:
        """Write a log line of level INFO with additional fields."""
        self._logger.info(message, extra={"fields": fields})

    def count(self, **numbers: int) -> None:
        """Write a log line with numbers for metrics: a keyword argument for each metric.

        Zeros are omitted. Write no line if all numbers are zero.
        """
        if counted := {name: number for name, number in numbers.items() if number}:
            self.log_line("counted", **counted)

    def log_failure(self, message: str) -> None:
        """Write a log line of level ERROR with the exception that is being handled."""
        self._logger.exception(message)


class CloudLines(logging.Formatter):
    """A formatter that renders a log record as a line of JSON, without tokens and other secrets.

    The line contains the record's `fields` (a dict passed as `extra`), the name of the function
    `service`, the trace of the request, and the stack trace of an exception.
    """

    def __init__(self, service: str) -> None:
        super().__init__()
        self._labels = {"service": service}

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, without a line break."""
        fields = {**getattr(record, "fields", {})}
        line = {
            **fields,
            "severity": record.levelname,
            "message": record.getMessage(),
            "logger": record.name,
            LABELS: self._labels,
            **_request_trace.get({}),
        }
        if record.exc_info:
            # Error Reporting reads this field.
            line["stack_trace"] = self.formatException(record.exc_info)
        return redact(json.dumps(line, default=str))


def trace_fields(headers: Mapping[str, str], project: str) -> dict[str, str]:
    """Return the log fields that assign a line to the trace in a request's headers.

    The header X-Cloud-Trace-Context takes precedence over traceparent. Return no fields if neither
    header contains a valid trace. The field for the span is omitted if the header has no span.

    Args:
        headers: the request's headers, with names in lower case.
        project: the project of the trace.
    """
    if found := _CLOUD_TRACE.fullmatch(headers.get("x-cloud-trace-context", "")):
        trace, span = found[1], f"{int(found[2]):016x}" if found[2] else ""
    elif found := _TRACEPARENT.fullmatch(headers.get("traceparent", "")):
        trace, span = found[1], found[2]
    else:
        return {}
    fields = {TRACE: f"projects/{project}/traces/{trace}"}
    return {**fields, SPAN: span} if span else fields
