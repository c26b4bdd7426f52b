"""Graphs of the resources that the program registers on AWS.

An output of a resource is a text that names the resource and the output.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from infra.aws.program import run
from infra.terraform.recorder import Resource, run_program

VISION = {
    "detcloud:account": "111111111111",
    "detcloud:region": "us-east-1",
    "detcloud:adminSha256": "a" * 64,
    "detcloud:alarmEmail": "vision@example.com",
    "detcloud:monthlyBudget": "100",
}
SPEECH = {
    "detcloud:account": "111111111111",
    "detcloud:region": "us-east-1",
    "detcloud:adminSha256": "b" * 64,
    "detcloud:network": '{"subnets": {"us-east-1c": "subnet-1c"}, "securityGroup": "sg-5"}',
    "detcloud:architecture": "x86_64",
    "detcloud:tracing": "true",
    "detcloud:protect": "false",
    "detcloud:tickConcurrency": "-1",
    "detcloud:runbookUrl": "https://wiki.example.com",
}
KEY = "arn:aws:kms:us-east-1:111111111111:key/1234abcd-12ab"
BANK = {
    "detcloud:account": "111111111111",
    "detcloud:region": "us-east-1",
    "detcloud:adminSha256": "c" * 64,
    "detcloud:kmsKey": KEY,
    "detcloud:permissionsBoundary": "arn:aws:iam::111111111111:policy/boundary",
    "detcloud:iamPath": "/teams/",
    "detcloud:iamPrefix": "corp-",
    "detcloud:tags": '{"cost-center": "42"}',
    "detcloud:privateSubnets": "true",
    "detcloud:endpoints": '["ecr.api", "ecr.dkr"]',
    "detcloud:domain": "ml.example.com",
    "detcloud:certificate": "arn:aws:acm:us-east-1:111111111111:certificate/1",
    "detcloud:hostedZone": "Z123",
    "detcloud:purgeCheckpoints": "false",
}
FRONTED = {
    "detcloud:account": "111111111111",
    "detcloud:region": "eu-west-1",
    "detcloud:adminSha256": "d" * 64,
    "detcloud:webAcl": "arn:aws:wafv2:us-east-1:111111111111:global/webacl/company/1234-ab",
    "detcloud:originSecret": "s" * 32,
    "detcloud:sessionManager": "true",
    "detcloud:apiConcurrency": "50",
    "detcloud:deletedCheckpointDays": "0",
    "detcloud:dashboard": "true",
}
COPIED = {**VISION, "detcloud:copies": '{"region": "us-west-2", "hours": 6}'}
POOLS = "resource_pools:\n  - pool_name: default\n    description: ${not} %{ours}\n"
OUTPUTS = (
    "arn",
    "apiEndpoint",
    "domainName",
    "executionArn",
    "invokeArn",
    "streamArn",
    "url",
    "version",
)


class Graph:
    """A maker that records registered resources and exported values."""

    def __init__(self) -> None:
        self.resources: list[Resource] = []
        self.exported: dict[str, Any] = {}

    def make(self, resource: Resource) -> tuple[str, Mapping[str, Any]]:
        self.resources.append(resource)
        place = f"{resource.type.rpartition(':')[2]}.{resource.name}"
        outputs: dict[str, Any] = {name: f"{place}.{name}" for name in OUTPUTS}
        if resource.type.endswith(":DomainName"):
            outcome = {word: f"{place}.{word}" for word in ("targetDomainName", "hostedZoneId")}
            given = resource.inputs["domainNameConfiguration"]
            outputs["domainNameConfiguration"] = {**given, **outcome}
        return f"{place}.id", outputs

    def inputs_of(self, kind: str) -> dict[str, Mapping[str, Any]]:
        """Return the inputs of all resources of a kind, the last part of the type, by name."""
        resources = [resource for resource in self.resources if resource.type.endswith(f":{kind}")]
        return {resource.name: resource.inputs for resource in resources}

    def predecessors_of(self, kind: str, name: str) -> tuple[tuple[str, str], ...]:
        """Return (kind, name) of each explicit dependency of a resource."""
        found = next(
            resource
            for resource in self.resources
            if resource.type.endswith(f":{kind}") and resource.name == name
        )
        return tuple((token.rpartition(":")[2], other) for token, other in found.after)


def files(folder: Path) -> dict[str, str]:
    """Write the files that settings name into `folder`, and return these settings."""
    folder.mkdir(exist_ok=True)
    (folder / "pools.yaml").write_text(POOLS)
    for name, comment in (("functions", b""), ("suggest", b"s")):
        # An empty archive with a comment.
        content = b"PK\x05\x06" + bytes(16) + len(comment).to_bytes(2, "little") + comment
        (folder / f"{name}.zip").write_bytes(content)
    return {
        "detcloud:clusterConfig": str(folder / "pools.yaml"),
        "detcloud:archive": str(folder / "functions.zip"),
        "detcloud:suggestArchive": str(folder / "suggest.zip"),
    }


def graph(team: str, config: Mapping[str, str], folder: Path) -> Graph:
    """Run the program for a team and return the graph of the team's resources."""
    stack = Graph()
    stack.exported = run_program(run, team, {**config, **files(folder)}, stack)
    return stack


def alarm_metrics(graph: Graph) -> int:
    """Return the number of metrics of all alarms. Each metric is paid for by the month."""
    alarms = graph.inputs_of("MetricAlarm").values()
    queries = [alarm.get("metricQueries") or ({"metric": None},) for alarm in alarms]
    return sum("metric" in query for alarm_queries in queries for query in alarm_queries)


def texts(value: Any) -> Iterator[str]:
    """Yield all texts in a nested value, including the keys of maps."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)
