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
    """The machine catalogue of the project acme-ml, read by Google's clients."""
    require("google.cloud.compute_v1")
    from infra.gcp.machine_catalog import GoogleCatalog

    return GoogleCatalog(compute_engine.project.name, endpoint=compute_engine.url)


@pytest.fixture(scope="session")
def vision(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """The graph of a team with the stack's own network, an alarm address and a budget."""
    require("pulumi_aws")
    from tests.unit.infra.graphs import VISION, graph

    return graph("vision", VISION, tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="session")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """The graph of a team in the same account and region, in an existing network."""
    require("pulumi_aws")
    from tests.unit.infra.graphs import SPEECH, graph

    return graph("speech", SPEECH, tmp_path_factory.mktemp("speech"))


@pytest.fixture(scope="session")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """The graph of a team with a company's rules: key, boundary, tags, private subnets, domain."""
    require("pulumi_aws")
    from tests.unit.infra.graphs import BANK, graph

    return graph("bank", BANK, tmp_path_factory.mktemp("bank"))


@pytest.fixture(scope="session")
def front_stack(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """The graph of a team with a company's web ACL in front of the API."""
    require("pulumi_aws")
    from tests.unit.infra.graphs import FRONTED, graph

    return graph("fronted", FRONTED, tmp_path_factory.mktemp("fronted"))


@pytest.fixture(scope="session")
def copied_stack(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """The graph of a team with copies in another region."""
    require("pulumi_aws")
    from tests.unit.infra.graphs import COPIED, graph

    return graph("vision", COPIED, tmp_path_factory.mktemp("copied"))


@pytest.fixture(scope="session")
def gcp_vision(tmp_path_factory: pytest.TempPathFactory) -> GcpGraph:
    """The graph of a team with subnetworks in two regions, an alarm address and a budget."""
    require("pulumi_gcp")
    from tests.unit.infra.gcp_graphs import VISION, gcp_graph

    return gcp_graph("vision", VISION, tmp_path_factory.mktemp("gcp_vision"))


@pytest.fixture(scope="session")
def gcp_copied(tmp_path_factory: pytest.TempPathFactory) -> GcpGraph:
    """The graph of a team with copies in another region."""
    require("pulumi_gcp")
    from tests.unit.infra.gcp_graphs import COPIED, gcp_graph

    return gcp_graph("vision", COPIED, tmp_path_factory.mktemp("gcp_copied"))


@pytest.fixture(scope="session")
def gcp_speech(tmp_path_factory: pytest.TempPathFactory) -> GcpGraph:
    """The graph of a team in the same project, in an existing network."""
    require("pulumi_gcp")
    from tests.unit.infra.gcp_graphs import SPEECH, gcp_graph

    return gcp_graph("speech", SPEECH, tmp_path_factory.mktemp("gcp_speech"))


@pytest.fixture(scope="session")
def gcp_bank(tmp_path_factory: pytest.TempPathFactory) -> GcpGraph:
    """The graph of a team with a company's rules: key, labels, no public addresses."""
    require("pulumi_gcp")
    from tests.unit.infra.gcp_graphs import BANK, gcp_graph

    return gcp_graph("bank", BANK, tmp_path_factory.mktemp("gcp_bank"))
