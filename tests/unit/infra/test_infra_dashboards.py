"""The dashboards of a team's stack in CloudWatch and in Cloud Monitoring."""

import json
from dataclasses import replace
from typing import Any

import pytest

from infra.aws.deployer import deployer_policy
from infra.aws.names import FUNCTIONS
from infra.aws.program import run
from infra.aws.settings import Settings, parse_settings
from infra.aws.terraform import PROVIDER
from infra.aws.verification import ALARMS
from infra.gcp.settings import parse_settings as parse_gcp_settings
from infra.stack_program import SettingsInvalid
from infra.terraform.export import FILE, export
from lambdas.gcp.function_names import FUNCTIONS as GCP_FUNCTIONS
from tests.emulators.policy_reader import allows
from tests.unit.infra.gcp_graphs import GcpGraph
from tests.unit.infra.graphs import FRONTED, Graph, files

# The namespaces of metrics that AWS records without a charge, and of the alarm about errors.
NAMESPACES = {"AWS/Lambda", "AWS/ApiGateway", "AWS/DynamoDB", "AWS/SQS", "detcloud/fronted"}


def widgets_of(graph: Graph) -> list[dict[str, Any]]:
    [dashboard] = graph.inputs_of("Dashboard").values()
    widgets: list[dict[str, Any]] = json.loads(dashboard["dashboardBody"])["widgets"]
    return widgets


def test_dashboard_is_off_by_default(
    vision: Graph, speech: Graph, bank: Graph, gcp_vision: GcpGraph, gcp_speech: GcpGraph
) -> None:
    assert not [graph for graph in (vision, speech, bank) if graph.inputs_of("Dashboard")]
    for gcp_graph in (gcp_vision, gcp_speech):
        assert not gcp_graph.inputs_of("monitoring/dashboard")


def test_deployer_changes_only_the_teams_dashboard() -> None:
    settings = Settings("vision", "1" * 12, "us-east-1", "pools.yaml", "a" * 64, dashboard=True)
    policy, without = deployer_policy(settings), deployer_policy(replace(settings, dashboard=False))
    place = "arn:aws:cloudwatch::111111111111:dashboard"
    for action in ("DeleteDashboards", "GetDashboard", "PutDashboard"):
        assert allows(policy, f"cloudwatch:{action}", f"{place}/detcloud-vision")
        assert not allows(policy, f"cloudwatch:{action}", f"{place}/detcloud-speech")
        assert not allows(without, f"cloudwatch:{action}", f"{place}/detcloud-vision")


@pytest.mark.parametrize("text", ["yes", "1", ""])
def test_refuses_other_values_than_booleans(text: str) -> None:
    for parse in (parse_settings, parse_gcp_settings):
        with pytest.raises(SettingsInvalid, match=r"dashboard is .*: expected true or false"):
            parse("vision", {"dashboard": text})


def test_dashboard_adds_no_metric(front_stack: Graph, vision: Graph) -> None:
    metrics = [
        metric
        for widget in widgets_of(front_stack)
        if widget["type"] == "metric"
        for metric in widget["properties"]["metrics"]
    ]
    assert {metric[0] for metric in metrics} == NAMESPACES
    filters = [len(graph.inputs_of("LogMetricFilter")) for graph in (front_stack, vision)]
    assert filters[0] == filters[1]


def test_dashboard_shows_all_functions_and_alarms(front_stack: Graph) -> None:
    widgets = widgets_of(front_stack)
    [alarms] = [widget for widget in widgets if widget["type"] == "alarm"]
    named = front_stack.inputs_of("MetricAlarm")
    assert set(named) == set(ALARMS)
    assert alarms["properties"]["alarms"] == [
        f"arn:aws:cloudwatch:eu-west-1:111111111111:alarm:{named[name]['name']}" for name in ALARMS
    ]
    [runs] = [
        widget["properties"]["metrics"]
        for widget in widgets
        if widget["properties"]["title"] == "Runs of functions"
    ]
    deployed = front_stack.inputs_of("Function")
    assert [metric[3] for metric in runs] == [deployed[name]["name"] for name in FUNCTIONS]
    [requests] = [
        widget["properties"]["metrics"]
        for widget in widgets
        if widget["properties"]["title"] == "Requests of the API"
    ]
    assert {metric[3] for metric in requests} == {"Api.api.id"}


def test_widgets_do_not_overlap(front_stack: Graph) -> None:
    places = [(widget["x"], widget["y"]) for widget in widgets_of(front_stack)]
    assert len(set(places)) == len(places)
    # CloudWatch has 24 columns.
    assert all(widget["x"] + widget["width"] <= 24 for widget in widgets_of(front_stack))


def test_terraform_export_contains_the_dashboard(tmp_path: Any) -> None:
    config = {**FRONTED, **files(tmp_path / "given")}
    export(run, PROVIDER, "front", config, tmp_path / "out")
    resources = json.loads((tmp_path / "out" / FILE).read_text())["resource"]
    dashboard = resources["aws_cloudwatch_dashboard"]["dashboard"]
    assert dashboard["dashboard_name"] == "detcloud-front"
    assert "${aws_dynamodb_table.table.name}" in dashboard["dashboard_body"]


def test_dashboard_of_google_cloud_selects_the_functions(gcp_bank: GcpGraph) -> None:
    [dashboard] = gcp_bank.inputs_of("monitoring/dashboard").values()
    parsed = json.loads(dashboard["dashboardJson"])
    assert parsed["displayName"] == "detcloud-bank"
    tiles = parsed["mosaicLayout"]["tiles"]
    filters = [
        data["timeSeriesQuery"]["timeSeriesFilter"]["filter"]
        for tile in tiles
        for data in tile["widget"]["xyChart"]["dataSets"]
    ]
    services = {item["name"] for item in gcp_bank.inputs_of("cloudrunv2/service").values()}
    for name in GCP_FUNCTIONS:
        service = f"detcloud-bank-{name.replace('_', '-')}"
        assert service in services
        assert f'resource.labels.service_name="{service}"' in filters[0]
    [database] = gcp_bank.inputs_of("firestore/database").values()
    assert any(f'database_id="{database["name"]}"' in text for text in filters)
    places = [(tile.get("xPos", 0), tile.get("yPos", 0)) for tile in tiles]
    assert len(set(places)) == len(places)
