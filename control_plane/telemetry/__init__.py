"""The export of traces and metrics to an OpenTelemetry collector."""
