"""The address of the OpenTelemetry collector, from the standard variables of the process."""

import os
from typing import Final

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
SECONDS_MAX: Final = 5.0
"""The time that an export may take, retries included."""
PACKAGES: Final = "detcloud[telemetry]"


class ExportFailed(Exception):
    """A collector did not accept an export. A later export sends the data again."""


def has_collector() -> bool:
    """Return whether the process has the address of a collector. Import no package."""
    return bool(os.environ.get(ENDPOINT))
