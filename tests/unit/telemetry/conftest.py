from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require

require("opentelemetry.exporter.otlp.proto.http")

from tests.emulators.otlp_receiver import OtlpReceiver, serve_otlp  # noqa: E402
from tests.unit.api.cluster import Cluster, build_cluster  # noqa: E402


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    """A collector, whose address the variables of this process have."""
    with serve_otlp() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        yield receiver


@pytest.fixture
def cluster(tmp_path: Path, receiver: OtlpReceiver) -> Cluster:
    """A cluster with a collector."""
    return build_cluster(tmp_path / "objects")
