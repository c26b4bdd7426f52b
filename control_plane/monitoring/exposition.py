"""The text formats of Prometheus and OpenMetrics."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import exposition as text_format
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics

from control_plane.monitoring.families import FAMILIES, Family, Sample

_OPENMETRICS = "application/openmetrics-text"


class Exposition(NamedTuple):
    """Metrics as text."""

    content: bytes
    media_type: str


def render_metrics(samples: Iterable[Sample], accept: str) -> Exposition:
    """Render samples in the format that a request accepts.

    The format is OpenMetrics if the request accepts it, else the text format 0.0.4. A metric
    without samples is rendered with its meaning only.

    Args:
        samples: the samples, whose families are in FAMILIES.
        accept: the value of the request's Accept header, or "".
    """
    by_family: dict[Family, list[Sample]] = {family: [] for family in FAMILIES}
    for sample in samples:
        by_family[sample.family].append(sample)
    collected = _SampleCollector(by_family)
    # The choice of the library copies parameters of the request, and fails for some parameters.
    if any(part.partition(";")[0].strip() == _OPENMETRICS for part in accept.split(",")):
        content = openmetrics.generate_latest(collected)  # type: ignore[no-untyped-call]
        return Exposition(content, openmetrics.CONTENT_TYPE_LATEST)
    content = text_format.generate_latest(collected)
    return Exposition(content, text_format.CONTENT_TYPE_PLAIN_0_0_4)


class _SampleCollector:
    """The source of samples for the encoders of prometheus_client.

    No registry is needed, because the samples are read from rows for each answer.
    """

    def __init__(self, by_family: Mapping[Family, list[Sample]]) -> None:
        self._by_family = by_family

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with all samples."""
        for family, samples in self._by_family.items():
            make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = make(family.name, family.meaning, labels=family.labels)
            for sample in samples:
                metric.add_metric(sample.labels, sample.value)
            yield metric
