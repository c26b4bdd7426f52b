"""Graphs of the resources that the program registers on Google Cloud.

An output of a resource is a text that names the resource and the output.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra.gcp.image import Build
from infra.gcp.program import make_stack
from infra.terraform.recorder import Resource, run_program
from tests.emulators.gcp_stack_files import POOLS, gcp_files

DIGEST = "e" * 64
VISION = {
    "detcloud:project": "acme-ml",
    "detcloud:projectNumber": "123456789012",
    "detcloud:region": "us-central1",
    "detcloud:adminSha256": "a" * 64,
    "detcloud:regions": '["us-central1", "europe-west4"]',
    "detcloud:alarmEmail": "vision@example.com",
    "detcloud:monthlyBudget": "100",
    "detcloud:billingAccount": "01AB23-45CD67-89EF01",
}
# A team of the same project, with an existing network and prebuilt images.
SPEECH = {
    "detcloud:project": "acme-ml",
    "detcloud:projectNumber": "123456789012",
    "detcloud:region": "us-central1",
    "detcloud:adminSha256": "b" * 64,
    "detcloud:network": (
        '{"network": "shared", "subnetworks": {"us-west1": "west"}, "tags": ["gpus"]}'
    ),
    "detcloud:image": f"us-docker.pkg.dev/acme/mirror/functions@sha256:{DIGEST}",
    "detcloud:suggestImage": f"us-docker.pkg.dev/acme/mirror/suggest@sha256:{DIGEST}",
    "detcloud:protect": "false",
    "detcloud:apiInstances": "5",
    "detcloud:apiConcurrency": "10",
    "detcloud:runbookUrl": "https://wiki.example.com",
}
KEY = "projects/acme-keys/locations/us-central1/keyRings/ml/cryptoKeys/detcloud"
# A team with a company's rules: key, labels, no public addresses.
BANK = {
    "detcloud:project": "acme-ml",
    "detcloud:projectNumber": "123456789012",
    "detcloud:region": "us-central1",
    "detcloud:adminSha256": "c" * 64,
    "detcloud:kmsKey": KEY,
    "detcloud:labels": '{"cost-center": "42"}',
    "detcloud:privateSubnets": "true",
    "detcloud:dashboard": "true",
}
COPIED = {**VISION, "detcloud:copies": '{"region": "europe-west4", "hours": 6}'}
OUTPUTS = ("email", "member", "uri", "version")


class GcpGraph:
    """A maker that records registered resources, exported values and built images."""

    def __init__(self) -> None:
        self.resources: list[Resource] = []
        self.exported: dict[str, Any] = {}
        self.builds: list[Build] = []

    def make(self, resource: Resource) -> tuple[str, Mapping[str, Any]]:
        self.resources.append(resource)
        place = f"{resource.type.rpartition(':')[2]}.{resource.name}"
        outputs = {name: f"{place}.{name}" for name in OUTPUTS}
        if resource.type in _NAMED:
            outputs["name"] = f"{place}.name"
        return f"{place}.id", outputs

    def inputs_of(self, kind: str) -> dict[str, Mapping[str, Any]]:
        """Return the inputs of all resources of a type, `module/type`, by resource name."""
        resources = [resource for resource in self.resources if resource.type.split(":")[1] == kind]
        return {resource.name: resource.inputs for resource in resources}

    def predecessors_of(self, kind: str, name: str) -> set[str]:
        """Return the names of the resources in the explicit dependencies of a resource."""
        found = next(
            resource
            for resource in self.resources
            if resource.type.split(":")[1] == kind and resource.name == name
        )
        return {other for _, other in found.after}


# Types that get a name from Google, not from the program.
_NAMED = {
    "gcp:serviceaccount/account:Account",
    "gcp:projects/iAMCustomRole:IAMCustomRole",
    "gcp:monitoring/notificationChannel:NotificationChannel",
}


def gcp_graph(team: str, config: Mapping[str, str], folder: Path, pools: str = POOLS) -> GcpGraph:
    """Run the program for a team and return the graph of the team's resources."""
    graph = GcpGraph()

    def run() -> None:
        make_stack(graph.builds.append)

    graph.exported = run_program(run, team, {**config, **gcp_files(folder, pools)}, graph)
    return graph


def kinds(graph: GcpGraph) -> set[str]:
    """Return the types of a stack's resources, `module/type`, without providers."""
    return {resource.type.split(":")[1] for resource in graph.resources} - {"providers"}


def environments(graph: GcpGraph) -> dict[str, dict[str, Any]]:
    """Return the environment variables of each service. A secret is the map of its source."""
    services = graph.inputs_of("cloudrunv2/service")
    containers = {name: service["template"]["containers"] for name, service in services.items()}
    return {
        name: {
            variable["name"]: variable.get("value", variable.get("valueSource"))
            for variable in container["envs"]
        }
        for name, [container] in containers.items()
    }
