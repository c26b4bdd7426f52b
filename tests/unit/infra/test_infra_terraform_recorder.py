"""Pulumi programs without an engine: registered resources, their order, and refusals."""

from collections.abc import Mapping
from typing import Any

import pulumi
import pulumi_aws as aws
import pytest

from infra.terraform.recorder import Resource, run_program


class ResourceList:
    def __init__(self) -> None:
        self.resources: list[Resource] = []

    def make(self, resource: Resource) -> tuple[str, Mapping[str, Any]]:
        self.resources.append(resource)
        return f"{resource.name}-id", {"arn": f"{resource.name}-arn"}


def test_program_continues_with_the_makers_outputs() -> None:
    def program() -> None:
        first = aws.sqs.Queue("first", delay_seconds=3, tags={"a": "b"})
        after = pulumi.ResourceOptions(depends_on=[first])
        second = aws.sqs.Queue("second", policy=first.arn.apply("of {}".format), opts=after)
        aws.sqs.Queue("third", opts=after)
        pulumi.export("both", pulumi.Output.concat(first.id, " ", second.id))
        pulumi.export("where", pulumi.Config("detcloud").require("region"))

    kept = ResourceList()
    outputs = run_program(program, "team", {"detcloud:region": "here"}, kept)
    assert outputs == {"both": "first-id second-id", "where": "here"}
    kind = "aws:sqs/queue:Queue"
    assert sorted(kept.resources, key=lambda resource: resource.name) == [
        Resource(kind, "first", {"delaySeconds": 3, "tags": {"a": "b"}}),
        # A used resource is an implicit dependency.
        Resource(kind, "second", {"policy": "of first-arn"}),
        Resource(kind, "third", {}, ((kind, "first"),)),
    ]


def test_programs_are_isolated() -> None:
    def program() -> None:
        aws.sqs.Queue(pulumi.get_stack())
        pulumi.export(pulumi.get_stack(), pulumi.Config("detcloud").get("region"))

    first, second = ResourceList(), ResourceList()
    assert run_program(program, "a", {"detcloud:region": "here"}, first) == {"a": "here"}
    assert run_program(program, "b", {}, second) == {"b": None}
    assert [resource.name for resource in second.resources] == ["b"]


def test_errors_of_the_program_are_raised() -> None:
    def program() -> None:
        raise pulumi.RunError("no")

    with pytest.raises(pulumi.RunError, match="no"):
        run_program(program, "team", {}, ResourceList())


def test_errors_of_the_maker_are_raised() -> None:
    class Refuses:
        def make(self, resource: Resource) -> tuple[str, Mapping[str, Any]]:
            raise KeyError(f"no {resource.name}")

    def program() -> None:
        aws.sqs.Queue("first")

    with pytest.raises(KeyError, match="no first"):
        run_program(program, "team", {}, Refuses())


def test_refuses_cloud_queries_in_an_export() -> None:
    def program() -> None:
        aws.get_caller_identity()

    with pytest.raises(Exception, match="not possible in an export"):
        run_program(program, "team", {}, ResourceList())
