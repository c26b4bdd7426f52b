from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.conftest import require
from tests.emulators.gce.project import Project
from tests.emulators.gce.serving import GceServer, gce_server

if TYPE_CHECKING:
    from infra.gcp.machine_catalog import GoogleCatalog
    from tests.unit.infra.gcp_graphs import GcpGraph
    from tests.unit.infra.graphs import Graph


@pytest.fixture
def compute_engine() -> Iterator[GceServer]:
    """Compute Engine in the project acme-ml."""
    with gce_server(Project(lambda: 0, name="acme-ml")) as server:
        yield server


@pytest.fixture
def catalog(compute_engine: GceServer) -> GoogleCatalog:
    """The catalogue of that project, read by Google's clients."""
    require("google.cloud.compute_v1")
    from infra.gcp.machine_catalog import GoogleCatalog

    return GoogleCatalog(compute_engine.project.name, endpoint=compute_engine.url)


@pytest.fixture(scope="session")
def vision(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """A team with all there is: a network of its own, somebody to tell, a budget."""
    require("pulumi_aws")
    from tests.unit.infra.graphs import VISION, graph

    return graph("vision", VISION, tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="session")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """A team of the same account and region, in a network that was there."""
    require("pulumi_aws")
    from tests.unit.infra.graphs import SPEECH, graph

    return graph("speech", SPEECH, tmp_path_factory.mktemp("speech"))


@pytest.fixture(scope="session")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """A team whose company has rules: a key, bounds, tags, private subnets and a domain."""
    require("pulumi_aws")
    from tests.unit.infra.graphs import BANK, graph

    return graph("bank", BANK, tmp_path_factory.mktemp("bank"))


@pytest.fixture(scope="session")
def front_stack(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """The stack of a company with a firewall of its own in front."""
    require("pulumi_aws")
    from tests.unit.infra.graphs import FRONTED, graph

    return graph("fronted", FRONTED, tmp_path_factory.mktemp("fronted"))


@pytest.fixture(scope="session")
def gcp_vision(tmp_path_factory: pytest.TempPathFactory) -> GcpGraph:
    """A team with subnetworks in two regions, somebody to tell, and a budget."""
    require("pulumi_gcp")
    from tests.unit.infra.gcp_graphs import VISION, gcp_graph

    return gcp_graph("vision", VISION, tmp_path_factory.mktemp("gcp_vision"))


@pytest.fixture(scope="session")
def gcp_speech(tmp_path_factory: pytest.TempPathFactory) -> GcpGraph:
    """A team of the same project, in a network that was there."""
    require("pulumi_gcp")
    from tests.unit.infra.gcp_graphs import SPEECH, gcp_graph

    return gcp_graph("speech", SPEECH, tmp_path_factory.mktemp("gcp_speech"))


@pytest.fixture(scope="session")
def gcp_bank(tmp_path_factory: pytest.TempPathFactory) -> GcpGraph:
    """A team whose company has rules: a key, labels, and no public addresses."""
    require("pulumi_gcp")
    from tests.unit.infra.gcp_graphs import BANK, gcp_graph

    return gcp_graph("bank", BANK, tmp_path_factory.mktemp("gcp_bank"))
