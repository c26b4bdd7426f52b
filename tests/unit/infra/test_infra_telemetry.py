"""The setting `telemetry` of stacks: the collector, and the headers that may contain a key."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from infra.aws.functions import describe_deployment
from infra.aws.settings import parse_settings as parse_aws
from infra.aws.terraform import PROVIDER
from infra.gcp.settings import parse_settings as parse_gcp
from infra.stack_program import SettingsInvalid
from infra.telemetry_setting import Collector
from lambdas.collector_headers import OBJECT
from tests.conftest import require
from tests.unit.infra.test_infra_gcp_settings import LEAST as GCP
from tests.unit.infra.test_infra_settings import LEAST as AWS

require("pulumi_aws")
require("pulumi_gcp")

from tests.unit.infra import gcp_graphs, graphs  # noqa: E402

CLOUDS: dict[str, Any] = {"aws": (parse_aws, AWS), "gcp": (parse_gcp, GCP)}
ENDPOINT = "https://otlp.example.com/otlp"
HEADERS = {"authorization": "Basic canary-79"}
TELEMETRY = {"detcloud:telemetry": json.dumps({"endpoint": ENDPOINT, "headers": HEADERS})}
TEXT = json.dumps(HEADERS)
DIGEST = hashlib.sha256(TEXT.encode()).hexdigest()
ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
DIGEST_VARIABLE = "DETCLOUD_COLLECTOR_HEADERS_SHA256"


def environments(cloud: str, folder: Path, settings: dict[str, str]) -> tuple[Any, dict[str, Any]]:
    """Return a stack's graph, and the variables of each function."""
    if cloud == "aws":
        made = graphs.graph("vision", {**graphs.VISION, **settings}, folder)
        functions = made.inputs_of("Function")
        return made, {name: one["environment"]["variables"] for name, one in functions.items()}
    of_gcp = gcp_graphs.gcp_graph("vision", {**gcp_graphs.VISION, **settings}, folder)
    variables = gcp_graphs.environments(of_gcp)
    # The relay is no function of the cluster.
    return of_gcp, {name: one for name, one in variables.items() if name != "relay"}


def stored_headers(cloud: str, made: Any) -> dict[str, Any]:
    """Return the objects of the stack with headers, by name."""
    kind = "BucketObjectv2" if cloud == "aws" else "storage/bucketObject"
    return {name: one for name, one in made.inputs_of(kind).items() if name == "collector-headers"}


@pytest.mark.parametrize("cloud", CLOUDS)
def test_functions_have_the_address_and_no_headers(cloud: str, tmp_path: Path) -> None:
    made, functions = environments(cloud, tmp_path, TELEMETRY)
    assert len(functions) >= 6
    for name, variables in functions.items():
        assert variables[ENDPOINT_VARIABLE] == ENDPOINT
        assert variables.get(DIGEST_VARIABLE) == (DIGEST if name == "tick" else None)
        assert "canary" not in repr(variables)
    (kept,) = stored_headers(cloud, made).values()
    assert (kept["content"], kept.get("key") or kept["name"]) == (TEXT, OBJECT)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_stack_without_the_setting_exports_nothing(cloud: str, tmp_path: Path) -> None:
    made, functions = environments(cloud, tmp_path, {})
    for variables in functions.values():
        assert not {ENDPOINT_VARIABLE, DIGEST_VARIABLE} & set(variables)
    assert not stored_headers(cloud, made)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_collector_without_headers_needs_no_object(cloud: str, tmp_path: Path) -> None:
    setting = {"detcloud:telemetry": '{"endpoint": "http://collector.internal:4318"}'}
    made, functions = environments(cloud, tmp_path, setting)
    assert DIGEST_VARIABLE not in functions["tick"]
    assert not stored_headers(cloud, made)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_settings_never_show_headers(cloud: str) -> None:
    parse, least = CLOUDS[cloud]
    settings = parse("vision", {**least, "telemetry": TELEMETRY["detcloud:telemetry"]})
    assert settings.telemetry == Collector(ENDPOINT, TEXT, DIGEST)
    assert "canary" not in repr(settings)


def test_deployment_with_other_headers_has_another_description(tmp_path: Path) -> None:
    archive = tmp_path / "archive.zip"
    archive.write_bytes(b"code")
    texts = {**AWS, "archive": str(archive), "suggestArchive": str(archive)}
    descriptions = {
        describe_deployment(
            parse_aws("vision", {**texts, "telemetry": json.dumps({"endpoint": ENDPOINT, **more})}),
            "",
        )
        for more in ({}, {"headers": HEADERS}, {"headers": {"authorization": "Basic other"}})
    }
    assert len(descriptions) == 3


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize(
    "given",
    [
        "canary-79",
        "[]",
        "{}",
        '{"headers": {"a": "canary-79"}}',
        '{"endpoint": "ftp://canary-79"}',
        '{"endpoint": "https://"}',
        '{"endpoint": "https://host:0"}',
        '{"endpoint": "https://host:canary-79"}',
        '{"endpoint": "https://ada:canary-79@host"}',
        '{"endpoint": "https://host?key=canary-79"}',
        '{"endpoint": "https://host#canary-79"}',
        '{"endpoint": "https://host", "key": "canary-79"}',
        '{"endpoint": "https://host", "headers": ["canary-79"]}',
        '{"endpoint": "https://host", "headers": {"a": 79}}',
        '{"endpoint": "https://host", "headers": {"a b": "canary-79"}}',
        '{"endpoint": "https://host", "headers": {"a": "canary-79\\r\\nb: c"}}',
        '{"endpoint": "https://host", "headers": {"a": " canary-79"}}',
        '{"endpoint": "http://host", "headers": {"a": "canary-79"}}',
        '{"endpoint": "http://127.0.0.1.example:1", "headers": {"a": "canary-79"}}',
        json.dumps({"endpoint": "https://host", "headers": {"a": "canary-79" * 500}}),
        json.dumps({"endpoint": "https://host", "headers": {f"a{n}": "b" for n in range(21)}}),
    ],
)
def test_wrong_collector_is_refused_without_the_value(cloud: str, given: str) -> None:
    parse, least = CLOUDS[cloud]
    with pytest.raises(SettingsInvalid) as refused:
        parse("vision", {**least, "telemetry": given})
    (problem,) = refused.value.problems
    assert problem.startswith('detcloud:telemetry is "(a secret)": expected a map like')
    assert "canary" not in problem


def test_terraform_export_has_the_object(tmp_path: Path) -> None:
    from infra.aws.program import run
    from infra.terraform.export import export

    config = {**graphs.VISION, **TELEMETRY, **graphs.files(tmp_path / "given")}
    document = export(run, PROVIDER, "vision", config, tmp_path / "out")
    assert document["resource"]["aws_s3_object"]["collector_headers"]["content"] == TEXT
