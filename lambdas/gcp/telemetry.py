"""Logs of the deployed functions, as Cloud Logging takes them from a container: a JSON object a
line, in the trace of the request that it was written for.

Numbers are fields of lines, of which metrics are made by the log: `count` writes them.
https://cloud.google.com/logging/docs/structured-logging
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
# A trace and a span of it, of the header that Cloud Run sets and of the standard's.
_CLOUD_TRACE = re.compile(r"([0-9a-f]{32})(?:/(\d{1,20}))?(?:;.*)?")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")

_request_trace: ContextVar[Mapping[str, str]] = ContextVar("request_trace")


class Telemetry:
    """The logs of the function `service`, which are all that its process writes."""

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
        """Assign the following log lines of this request to the trace in its headers."""
        _request_trace.set(trace_fields(headers, os.environ.get("DETCLOUD_PROJECT", "")))

    def log_line(self, message: str, /, **fields: object) -> None:
        """Write one line; what a request that logs nothing else logs."""
        self._logger.info(message, extra={"fields": fields})

    def count(self, **numbers: int) -> None:
        """Write numbers of metrics, by their names; zeros are not written."""
        if counted := {name: number for name, number in numbers.items() if number}:
            self.log_line("counted", **counted)

    def log_failure(self, message: str) -> None:
        """Write the exception that is handled."""
        self._logger.exception(message)


class CloudLines(logging.Formatter):
    """A formatter that writes a record with its `fields` (a dict given by `extra`) as one redacted
    line of the function `service`.
    """

    def __init__(self, service: str) -> None:
        super().__init__()
        self._labels = {"service": service}

    def format(self, record: logging.LogRecord) -> str:
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
            # Where Error Reporting looks for one.
            line["stack_trace"] = self.formatException(record.exc_info)
        return redact(json.dumps(line, default=str))


def trace_fields(headers: Mapping[str, str], project: str) -> dict[str, str]:
    """Return the fields of a line that belongs to the trace in a request's headers, none where they
    name none.
    """
    if found := _CLOUD_TRACE.fullmatch(headers.get("x-cloud-trace-context", "")):
        trace, span = found[1], f"{int(found[2]):016x}" if found[2] else ""
    elif found := _TRACEPARENT.fullmatch(headers.get("traceparent", "")):
        trace, span = found[1], found[2]
    else:
        return {}
    fields = {TRACE: f"projects/{project}/traces/{trace}"}
    return {**fields, SPAN: span} if span else fields
