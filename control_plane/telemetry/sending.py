"""The sending of exports: a session without redirects, a limit of time, and quiet logs."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final

import requests

from control_plane.telemetry.endpoint import ExportFailed

log = logging.getLogger(__name__)

JOIN_SECONDS_MAX: Final = 8.0
"""The time after which an export counts as failed, even if the collector still sends an answer."""
_LOGGERS: Final = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
)


class Sender:
    """The sender of all exports of a process. At most one export runs at a time."""

    def __init__(self) -> None:
        self._running: threading.Thread | None = None
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(_lower_to_warning)

    def send(self, export: Callable[[], bool], what: str) -> None:
        """Run an export in a thread, and wait for the thread for at most JOIN_SECONDS_MAX.

        The exporter limits each wait for the collector, but not the sum of all waits. A collector
        that sends its answer byte by byte would otherwise hold up a tick.

        Args:
            export: sends the data and returns whether the collector accepted the data.
            what: the data, such as `3 spans`, for the message.

        Raises:
            ExportFailed: the collector did not accept the data in time, or a former export runs.
        """
        if self._running is not None and self._running.is_alive():
            raise ExportFailed(f"{what} must wait: a former export still runs")
        outcomes: list[bool] = []

        def run() -> None:
            try:
                outcomes.append(export())
            except Exception as error:
                log.warning("an export failed: %s", type(error).__name__)

        thread = threading.Thread(target=run, name="telemetry", daemon=True)
        self._running = thread
        thread.start()
        thread.join(JOIN_SECONDS_MAX)
        if outcomes != [True]:
            raise ExportFailed(f"the collector did not accept {what}")


def open_session() -> requests.Session:
    """Return a session that follows no redirect, so that headers reach only the collector."""
    session = requests.Session()
    session.max_redirects = 0
    return session


def explicit_headers(headers: Mapping[str, str]) -> dict[str, str] | None:
    """Return the headers for an exporter. None lets the exporter read the standard variables."""
    return dict(headers) or None


def _lower_to_warning(record: logging.LogRecord) -> bool:
    """Lower an error of an exporter to a warning, and keep the record.

    A collector that is away must not raise the alarm about errors of the cluster.
    """
    if record.levelno > logging.WARNING:
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True


SENDER: Final = Sender()
