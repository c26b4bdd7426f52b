"""The trace context of a submission."""

from dataclasses import replace

from control_plane.actors.records import TraceSettings, TrialSettings
from control_plane.actors.spans import parse_traceparent
from control_plane.services import Services


def with_trace(settings: TrialSettings, header: str, services: Services) -> TrialSettings:
    """Return the settings with the trace context of the request's header.

    An invalid header is ignored. Spans are only exported for a sampled trace, and by a cluster with
    a collector.
    """
    parent = parse_traceparent(header)
    if parent is None:
        return settings
    exports_spans = parent.is_sampled and services.exports_spans
    return replace(settings, trace=TraceSettings(parent.encode(), exports_spans))
