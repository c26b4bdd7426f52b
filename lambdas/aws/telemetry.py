"""Logs, metrics and traces of the deployed functions, in the forms of CloudWatch and X-Ray."""

import json
import logging
import os
from collections.abc import Callable
from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit

from control_plane.api.access_log import redact

# The metric namespace of a process without DETCLOUD_CLUSTER.
NAMESPACE = "detcloud"

Handler = Callable[[Any, Any], Any]


class Telemetry:
    """The logs, metrics and traces of the function `service`.

    The constructor sends all logs of the process to the function's log: from level INFO, and from
    WARNING for botocore and mangum.
    """

    def __init__(self, service: str) -> None:
        self._logger = Logger(
            service=service, json_serializer=_render_line, log_uncaught_exceptions=True
        )
        self._metrics = Metrics(namespace=_namespace(), service=service)
        self._service = service
        root = logging.getLogger()
        root.handlers[:] = self._logger.handlers
        root.setLevel(logging.INFO)
        for name in ("botocore", "mangum"):
            logging.getLogger(name).setLevel(logging.WARNING)
        # The function's logger has the same handlers; propagation would write each line twice.
        logging.getLogger(service).propagate = False

    def wrap_handler(self, handler: Handler) -> Handler:
        """Wrap a handler so that each call is logged, measured and traced.

        Log lines contain the request's id. The metrics are written after each call, also after an
        error. The handler's result and errors are passed on.
        """
        logged = self._logger.inject_lambda_context(self._traced_handler(handler), clear_state=True)

        def measured_handler(event: Any, context: Any) -> Any:
            try:
                return logged(event, context)
            finally:
                if self._metrics.metric_set:
                    self._metrics.flush_metrics()

        return measured_handler

    def _traced_handler(self, handler: Handler) -> Handler:
        """Return a handler that calls `handler` and traces each call with X-Ray.

        Return `handler` unchanged if the environment variable POWERTOOLS_TRACE_DISABLED is `true`.
        Results are not part of the traces.
        """
        if os.environ.get("POWERTOOLS_TRACE_DISABLED") == "true":
            # Even a disabled tracer imports all of X-Ray, which creates two clients.
            return handler
        from aws_lambda_powertools import Tracer

        tracer = Tracer(service=self._service, auto_patch=False)
        traced: Handler = tracer.capture_lambda_handler(handler, capture_response=False)
        return traced

    def log_line(self, message: str, /, **fields: object) -> None:
        """Write a log line of level INFO with additional fields."""
        self._logger.info(message, extra=fields)

    def count(self, **numbers: int) -> None:
        """Add numbers to metrics: a keyword argument for each metric.

        The metrics are written at the end of a call of a wrapped handler. Zeros are skipped,
        because each hour in which a metric has a value is charged.
        """
        for name, number in numbers.items():
            if number:
                self._metrics.add_metric(name=name, unit=MetricUnit.Count, value=number)


def _render_line(fields: dict[str, Any]) -> str:
    """Return a log line as JSON without tokens and other secrets.

    Values that JSON cannot express are written as texts.
    """
    return redact(json.dumps(fields, default=str))


def _namespace() -> str:
    """Return the metric namespace of the cluster, `detcloud/TEAM`, which the alarms also use.

    Return NAMESPACE without DETCLOUD_CLUSTER. Metrics of several teams in an account stay separate.
    """
    return os.environ.get("DETCLOUD_CLUSTER", NAMESPACE).replace("-", "/", 1)
