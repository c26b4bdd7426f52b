"""Logs, metrics and traces of the deployed functions, as CloudWatch and X-Ray take them."""

import json
import logging
import os
from collections.abc import Callable
from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit

from control_plane.api.access_log import redact

# Of a process that no team deployed.
NAMESPACE = "detcloud"

Handler = Callable[[Any, Any], Any]


class Telemetry:
    """The logs, metrics and traces of the function `service`.

    A metric is paid for by the hour in which it has a value: zeros are not written.
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
        # Ours goes there too, once.
        logging.getLogger(service).propagate = False

    def wrap_handler(self, handler: Handler) -> Handler:
        """Return the handler with the request's id in its logs, its metrics, and its trace."""
        logged = self._logger.inject_lambda_context(self._traced_handler(handler), clear_state=True)

        def measured_handler(event: Any, context: Any) -> Any:
            try:
                return logged(event, context)
            finally:
                if self._metrics.metric_set:
                    self._metrics.flush_metrics()

        return measured_handler

    def _traced_handler(self, handler: Handler) -> Handler:
        """Return the handler with its trace, where traces are wanted."""
        if os.environ.get("POWERTOOLS_TRACE_DISABLED") == "true":
            # A tracer that is disabled imports all of X-Ray all the same, which makes two clients.
            return handler
        from aws_lambda_powertools import Tracer

        tracer = Tracer(service=self._service, auto_patch=False)
        traced: Handler = tracer.capture_lambda_handler(handler, capture_response=False)
        return traced

    def log_line(self, message: str, /, **fields: object) -> None:
        """Write one line; what an invocation that logs nothing else logs."""
        self._logger.info(message, extra=fields)

    def count(self, **numbers: int) -> None:
        """Add to metrics, by their names."""
        for name, number in numbers.items():
            if number:
                self._metrics.add_metric(name=name, unit=MetricUnit.Count, value=number)


def _render_line(fields: dict[str, Any]) -> str:
    return redact(json.dumps(fields, default=str))


def _namespace() -> str:
    """Return `detcloud/TEAM`, the alarms' namespace too: metrics of an account's teams do not add
    up.
    """
    return os.environ.get("DETCLOUD_CLUSTER", NAMESPACE).replace("-", "/", 1)
