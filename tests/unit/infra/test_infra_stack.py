"""The resources that the program registers for a team's stack on AWS."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pulumi
import pytest

from infra.aws.events import INTENTS, MAIL, WARNINGS
from infra.aws.names import FUNCTIONS, INVOKED_BY_TICK, ROLE_FUNCTIONS, ROLE_OF
from infra.aws.program import run
from infra.terraform.recorder import run_program
from lambdas.clock import TAKEOVER_MS
from provisioner.reconcile import PASS_MS
from tests.unit.infra.graphs import POOLS, VISION, Graph, alarm_metrics, files, texts

TAG = "detcloud-cluster"
ALARMS_TOPIC = "arn:aws:sns:us-east-1:111111111111:detcloud-vision-alarms"
# Resource types without tags.
UNTAGGED = {
    "ApiMapping",
    "BucketLifecycleConfiguration",
    "BucketObjectv2",
    "BucketOwnershipControls",
    "BucketPolicy",
    "BucketPublicAccessBlock",
    "BucketServerSideEncryptionConfiguration",
    "BucketVersioning",
    "EventTarget",
    "FunctionEventInvokeConfig",
    "Grant",
    "Alias",
    "Integration",
    "LogMetricFilter",
    "Permission",
    "Record",
    "RolePolicy",
    "Route",
    "RouteTableAssociation",
    "TopicPolicy",
    "TopicSubscription",
    "aws",
}
# Resource types that cost nothing in a month without work. Alarms are counted below.
FREE_WHILE_IDLE = UNTAGGED | {
    "Api",
    "Bucket",
    "Budget",
    # The cluster of the relay, which has tasks only while tunnels are open.
    "Cluster",
    "EventRule",
    "EventSourceMapping",
    "Function",
    "InstanceProfile",
    "InternetGateway",
    "LogGroup",
    "MetricAlarm",
    "PlacementGroup",
    "Queue",
    "Role",
    "RouteTable",
    "SecurityGroup",
    "SecurityGroupEgressRule",
    "SecurityGroupIngressRule",
    "Stage",
    "Subnet",
    "Table",
    "TaskDefinition",
    "Topic",
    "Vpc",
    "VpcEndpoint",
}


def kinds(stack: Graph) -> set[str]:
    return {resource.type.rpartition(":")[2] for resource in stack.resources}


def test_table_matches_the_state_tables_definition(vision: Graph) -> None:
    pytest.importorskip("boto3")
    from control_plane.aws.state_table import table_definition

    table, wanted = vision.inputs_of("Table")["table"], table_definition("detcloud-vision")
    assert table["name"] == wanted["TableName"]
    assert table["billingMode"] == wanted["BillingMode"]
    assert {attribute["name"]: attribute["type"] for attribute in table["attributes"]} == {
        attribute_definition["AttributeName"]: attribute_definition["AttributeType"]
        for attribute_definition in wanted["AttributeDefinitions"]
    }
    [index], [wanted_index] = table["globalSecondaryIndexes"], wanted["GlobalSecondaryIndexes"]
    assert index["name"] == wanted_index["IndexName"]
    assert index["projectionType"] == wanted_index["Projection"]["ProjectionType"]
    for description, definition in ((table, wanted), (index, wanted_index)):
        schema = [item["AttributeName"] for item in definition["KeySchema"]]
        assert [description["hashKey"], description["rangeKey"]] == schema
    assert table["streamViewType"] == wanted["StreamSpecification"]["StreamViewType"]
    assert table["serverSideEncryption"] == {"enabled": wanted["SSESpecification"]["Enabled"]}
    assert table["streamEnabled"]
    assert table["pointInTimeRecovery"] == {"enabled": True}


def test_protected_table_and_buckets_cannot_be_deleted(vision: Graph, speech: Graph) -> None:
    for stack, is_protected in ((vision, True), (speech, False)):
        assert stack.inputs_of("Table")["table"]["deletionProtectionEnabled"] is is_protected
        for bucket in stack.inputs_of("Bucket").values():
            assert bucket["forceDestroy"] is not is_protected


def test_buckets_are_private_encrypted_and_tls_only(vision: Graph) -> None:
    buckets = vision.inputs_of("Bucket")
    assert {item["bucket"] for item in buckets.values()} == {
        "detcloud-vision-objects-111111111111",
        "detcloud-vision-checkpoints-111111111111",
    }
    for name, bucket in buckets.items():
        closed = dict(vision.inputs_of("BucketPublicAccessBlock")[name])
        assert closed.pop("bucket") == f"Bucket.{name}.id"
        assert set(closed.values()) == {True}
        assert len(closed) == 4
        owned = vision.inputs_of("BucketOwnershipControls")[name]["rule"]
        assert owned == {"objectOwnership": "BucketOwnerEnforced"}
        [rule] = vision.inputs_of("BucketServerSideEncryptionConfiguration")[name]["rules"]
        assert rule["applyServerSideEncryptionByDefault"] == {"sseAlgorithm": "AES256"}
        policy = json.loads(vision.inputs_of("BucketPolicy")[name]["policy"])
        assert f"arn:aws:s3:::{bucket['bucket']}" in policy["Statement"][0]["Resource"]
        unfinished, old = vision.inputs_of("BucketLifecycleConfiguration")[name]["rules"]
        assert unfinished["abortIncompleteMultipartUpload"] == {"daysAfterInitiation": 1}
        # Also for buckets that keep versions no longer, whose old versions would stay.
        days = 7 if name == "checkpoints" else 1
        assert old["noncurrentVersionExpiration"] == {"noncurrentDays": days}
        assert old["expiration"] == {"expiredObjectDeleteMarker": True}


def test_functions_know_the_digest_of_the_cluster_configuration(
    vision: Graph,
) -> None:
    kept = vision.inputs_of("BucketObjectv2")["cluster-configuration"]
    assert (kept["bucket"], kept["key"]) == ("Bucket.objects.id", "config/cluster.yaml")
    assert kept["content"] == POOLS
    digest = hashlib.sha256(POOLS.encode()).hexdigest()
    assert {env["DETCLOUD_CONFIG_SHA256"] for env in environments(vision).values()} == {digest}


def environments(stack: Graph) -> dict[str, Mapping[str, Any]]:
    return {
        name: item["environment"]["variables"] for name, item in stack.inputs_of("Function").items()
    }


def test_functions_have_exact_environments(vision: Graph) -> None:
    common = {
        "DETCLOUD_TABLE": "detcloud-vision",
        "DETCLOUD_OBJECTS": "Bucket.objects.id",
        "DETCLOUD_CHECKPOINTS": "Bucket.checkpoints.id",
        "DETCLOUD_CLUSTER": "detcloud-vision",
        "DETCLOUD_API_URL": "Api.api.apiEndpoint",
        "DETCLOUD_ADMIN_SHA256": "a" * 64,
        "DETCLOUD_CONFIG_SHA256": hashlib.sha256(POOLS.encode()).hexdigest(),
        "POWERTOOLS_TRACE_DISABLED": "true",
    }
    own = {name: {"POWERTOOLS_SERVICE_NAME": name} for name in FUNCTIONS}
    own["api"] |= {
        "DETCLOUD_STORAGE_ROLE": "Role.storage.arn",
        "DETCLOUD_INSTANCE_ROLE": "Role.instance.arn",
        "DETCLOUD_RELAY": json.dumps(
            {
                "cluster": "detcloud-vision-relay",
                "definition": "detcloud-vision-relay",
                "subnets": ["Subnet.us-east-1a.id", "Subnet.us-east-1b.id"],
                "group": "SecurityGroup.relay.id",
            }
        ),
    }
    variables = environments(vision)
    network = json.loads(variables["tick"]["DETCLOUD_NETWORK"])
    assert network == {
        "subnets": {"us-east-1a": "Subnet.us-east-1a.id", "us-east-1b": "Subnet.us-east-1b.id"},
        "security_group": "SecurityGroup.instances.id",
        "instance_profile": "InstanceProfile.instance.arn",
        "placement_groups": {
            "us-east-1a": "detcloud-vision-gangs-us-east-1a",
            "us-east-1b": "detcloud-vision-gangs-us-east-1b",
        },
    }
    own["wake"] |= {
        "DETCLOUD_GC_FUNCTION": "detcloud-vision-checkpoint-gc:live",
        "DETCLOUD_SUGGEST_FUNCTION": "detcloud-vision-suggest:live",
        "DETCLOUD_NETWORK": variables["tick"]["DETCLOUD_NETWORK"],
    }
    topic = {"DETCLOUD_ALARMS_TOPIC": ALARMS_TOPIC}
    own["tick"] |= {**own["wake"], **topic, "POWERTOOLS_SERVICE_NAME": "tick"}
    own["checkpoint_gc"] |= {"DETCLOUD_PURGE_VERSIONS": "1"}
    assert variables == {name: {**common, **own[name]} for name in FUNCTIONS}


def test_environments_fit_lambdas_limit(speech: Graph) -> None:
    for variables in environments(speech).values():
        assert sum(map(len, texts(variables))) < 4096


def test_functions_follow_archive_architecture_and_tracing(vision: Graph, speech: Graph) -> None:
    for name, function in vision.inputs_of("Function").items():
        assert isinstance(function["code"], pulumi.FileArchive)
        archive = "suggest.zip" if name == "suggest" else "functions.zip"
        assert Path(function["code"].path).name == archive
        assert function["handler"] == f"lambdas.aws.{name}.handler"
        assert (function["runtime"], function["architectures"]) == ("python3.13", ["arm64"])
        assert function["tracingConfig"] == {"mode": "PassThrough"}
    for function in speech.inputs_of("Function").values():
        assert function["architectures"] == ["x86_64"]
        assert function["tracingConfig"] == {"mode": "Active"}
    sizes = {name: item["timeout"] for name, item in vision.inputs_of("Function").items()}
    assert sizes == {
        "api": 30,
        "advance": 60,
        "tick": 60,
        "wake": 60,
        "spot_notice": 30,
        "checkpoint_gc": 900,
        "suggest": 300,
    }
    assert vision.inputs_of("Function")["api"]["memorySize"] >= 512


def test_minute_has_concurrency_that_rows_cannot_use(vision: Graph, speech: Graph) -> None:
    for stack, reserved, others in ((vision, 2, 1), (speech, -1, -1)):
        at_once = {
            name: item.get("reservedConcurrentExecutions")
            for name, item in stack.inputs_of("Function").items()
        }
        own = {**dict.fromkeys(INVOKED_BY_TICK, others), "tick": reserved, "wake": reserved}
        assert at_once == dict.fromkeys(FUNCTIONS) | own | {"api": -1}


def test_each_function_except_wake_has_a_separate_role(vision: Graph) -> None:
    roles = {name: item["role"] for name, item in vision.inputs_of("Function").items()}
    # Other clouds trust the tick's role, and `wake` runs the same steps.
    assert roles == {name: f"Role.{ROLE_OF.get(name, name)}.arn" for name in FUNCTIONS}
    others = {"storage", "instance", "relay", "relay-start"}
    assert set(vision.inputs_of("RolePolicy")) == {*ROLE_FUNCTIONS, *others}
    for name, policy in vision.inputs_of("RolePolicy").items():
        assert policy["role"] == f"detcloud-vision-{name.replace('_', '-')}"


def test_instance_role_may_only_fetch_the_agents_code(vision: Graph) -> None:
    profile = vision.inputs_of("InstanceProfile")["instance"]
    assert profile["role"] == vision.inputs_of("Role")["instance"]["name"]
    document = json.loads(vision.inputs_of("RolePolicy")["instance"]["policy"])
    [statement] = document["Statement"]
    code = "arn:aws:s3:::detcloud-vision-objects-111111111111/agent-code/*"
    assert (statement["Action"], statement["Resource"]) == (["s3:GetObject"], [code])
    assert vision.inputs_of("Role")["instance"].get("managedPolicyArns") is None


def test_functions_are_created_after_roles_and_log_groups(vision: Graph) -> None:
    for name in FUNCTIONS:
        assert set(vision.predecessors_of("Function", name)) == {
            ("LogGroup", name),
            ("RolePolicy", ROLE_OF.get(name, name)),
        }
        group = vision.inputs_of("LogGroup")[name]
        assert group["name"] == f"/aws/lambda/{vision.inputs_of('Function')[name]['name']}"
        assert group["retentionInDays"] == 14
    assert vision.predecessors_of("EventSourceMapping", "mail") == (("RolePolicy", "advance"),)
    assert vision.predecessors_of("EventSourceMapping", "intents") == (("RolePolicy", "tick"),)


def test_mail_calls_advance_with_a_dead_letter_queue(vision: Graph) -> None:
    mail = dict(vision.inputs_of("EventSourceMapping")["mail"])
    assert mail["functionName"] == "Alias.advance.arn"
    assert mail["eventSourceArn"] == "Table.table.streamArn"
    assert json.loads(mail["filterCriteria"]["filters"][0]["pattern"]) == MAIL
    assert mail["destinationConfig"] == {"onFailure": {"destinationArn": "Queue.dead-letters.arn"}}
    assert mail["functionResponseTypes"] == ["ReportBatchItemFailures"]
    assert mail["bisectBatchOnFunctionError"] is True
    limits = ("batchSize", "maximumBatchingWindowInSeconds", "maximumRetryAttempts")
    assert [mail[name] for name in (*limits, "maximumRecordAgeInSeconds")] == [100, 2, 5, 3600]


def test_intents_call_wake_with_a_dead_letter_queue(vision: Graph) -> None:
    intents = vision.inputs_of("EventSourceMapping")["intents"]
    assert intents["functionName"] == "Alias.wake.arn"
    assert json.loads(intents["filterCriteria"]["filters"][0]["pattern"]) == INTENTS
    assert intents["destinationConfig"] == {
        "onFailure": {"destinationArn": "Queue.dead-letters.arn"}
    }
    assert intents["maximumBatchingWindowInSeconds"] == 2
    # `wake` returns unfinished rows for TAKEOVER_MS, at least PASS_MS apart. They must not use up
    # the repetitions, because the queue is for failures.
    assert intents["maximumRetryAttempts"] * PASS_MS > TAKEOVER_MS
    assert intents["maximumRecordAgeInSeconds"] * 1000 > TAKEOVER_MS


def test_stream_has_two_readers(vision: Graph) -> None:
    assert len(vision.inputs_of("EventSourceMapping")) == 2


def test_schedule_calls_tick_and_warnings_call_spot_notice(vision: Graph) -> None:
    rules, targets = vision.inputs_of("EventRule"), vision.inputs_of("EventTarget")
    assert rules["minute"]["scheduleExpression"] == "rate(1 minute)"
    pattern = json.loads(rules["warnings"]["eventPattern"])
    assert pattern == {"source": ["aws.ec2"], "detail-type": list(WARNINGS)}
    assert {name: target["arn"] for name, target in targets.items()} == {
        "minute": "Alias.tick.arn",
        "warnings": "Alias.spot_notice.arn",
    }
    again = {
        name: item["maximumRetryAttempts"]
        for name, item in vision.inputs_of("FunctionEventInvokeConfig").items()
    }
    assert again == {"tick": 1, "spot_notice": 2, "checkpoint_gc": 0, "suggest": 0}


def test_invocation_permissions_are_exact(vision: Graph) -> None:
    may = {
        (item["function"], item["principal"], item["sourceArn"])
        for item in vision.inputs_of("Permission").values()
    }
    assert may == {
        ("detcloud-vision-api", "apigateway.amazonaws.com", "Api.api.executionArn/*/$default"),
        (
            "detcloud-vision-api",
            "apigateway.amazonaws.com",
            "Api.api.executionArn/*/POST/api/v1/agents/*/sync",
        ),
        ("detcloud-vision-tick", "events.amazonaws.com", "EventRule.minute.arn"),
        ("detcloud-vision-spot-notice", "events.amazonaws.com", "EventRule.warnings.arn"),
    }


def test_gateway_sends_all_requests_to_the_api_with_limits(vision: Graph) -> None:
    integration, route = vision.inputs_of("Integration")["api"], vision.inputs_of("Route")["api"]
    assert integration["integrationUri"] == "Alias.api.invokeArn"
    assert integration["payloadFormatVersion"] == "2.0"
    assert (route["routeKey"], route["target"]) == ("$default", "integrations/Integration.api.id")
    limits = vision.inputs_of("Stage")["api"]["defaultRouteSettings"]
    assert limits == {"throttlingRateLimit": 50, "throttlingBurstLimit": 100}


def test_users_cannot_starve_agents(vision: Graph) -> None:
    """Syncs of agents have a separate route with a separate throttle."""
    route = vision.inputs_of("Route")["sync"]
    assert route["routeKey"] == "POST /api/v1/agents/{agent}/sync"
    assert route["target"] == vision.inputs_of("Route")["api"]["target"]
    stage = vision.inputs_of("Stage")["api"]
    assert stage["routeSettings"] == [
        {"routeKey": route["routeKey"], "throttlingRateLimit": 200, "throttlingBurstLimit": 400}
    ]
    # A stage refuses settings of a missing route.
    assert set(vision.predecessors_of("Stage", "api")) == {("Route", "api"), ("Route", "sync")}


def test_callers_use_the_live_alias_of_a_deployment(vision: Graph) -> None:
    functions, aliases = vision.inputs_of("Function"), vision.inputs_of("Alias")
    assert set(aliases) == set(FUNCTIONS)
    for name, alias in aliases.items():
        assert functions[name]["publish"] is True
        assert (alias["name"], alias["functionName"]) == ("live", functions[name]["name"])
        assert alias["functionVersion"] == f"Function.{name}.version"
    [deployment] = {function["description"] for function in functions.values()}
    assert re.fullmatch(r"detcloud \S+ [0-9a-f]{12}", deployment)
    for kind in ("Permission", "FunctionEventInvokeConfig"):
        assert {item["qualifier"] for item in vision.inputs_of(kind).values()} == {"live"}


def test_access_log_contains_no_secrets(vision: Graph) -> None:
    logged = json.loads(vision.inputs_of("Stage")["api"]["accessLogSettings"]["format"])
    assert logged["path"] == "$context.path"
    for value in logged.values():
        assert value.startswith("$context.")
        assert not any(word in value.lower() for word in ("query", "header", "auth", "raw"))


def test_security_group_admits_only_members(vision: Graph) -> None:
    ingress = vision.inputs_of("SecurityGroupIngressRule")["within"]
    group = ingress["securityGroupId"]
    rules = vision.inputs_of("SecurityGroupIngressRule").values()
    assert [rule for rule in rules if rule["securityGroupId"] == group] == [ingress]
    assert ingress["referencedSecurityGroupId"] == ingress["securityGroupId"]
    assert not {"cidrIpv4", "cidrIpv6", "prefixListId"} & set(ingress)


def test_instances_reach_instances_by_a_group_rule(vision: Graph) -> None:
    # EFA adapters need a rule whose target is the group. A rule to all addresses is not enough.
    egress = vision.inputs_of("SecurityGroupEgressRule")["among"]
    assert egress["referencedSecurityGroupId"] == egress["securityGroupId"]
    assert egress["ipProtocol"] == "-1"
    assert {item["strategy"] for item in vision.inputs_of("PlacementGroup").values()} == {"cluster"}


def test_each_zone_has_a_separate_subnet(vision: Graph) -> None:
    blocks = {name: item["cidrBlock"] for name, item in vision.inputs_of("Subnet").items()}
    # A /16 has sixteen /20s, each of 4096 addresses.
    assert blocks == {"us-east-1a": "10.77.0.0/20", "us-east-1b": "10.77.16.0/20"}
    assert set(vision.inputs_of("RouteTableAssociation")) == set(blocks)


def test_existing_network_gets_no_resources(speech: Graph) -> None:
    assert not kinds(speech) & {"Vpc", "Subnet", "SecurityGroup", "RouteTable", "VpcEndpoint"}
    network = json.loads(environments(speech)["tick"]["DETCLOUD_NETWORK"])
    assert network["subnets"] == {"us-east-1c": "subnet-1c"}
    assert network["security_group"] == "sg-5"


def test_an_idle_month_costs_less_than_a_dollar(vision: Graph) -> None:
    assert kinds(vision) - {"TeamStack"} <= FREE_WHILE_IDLE
    # Each alarm metric costs 0.10 $. docs/aws.md adds up 0.28 $ for everything else.
    assert alarm_metrics(vision) == 6


def test_stack_without_an_address_has_no_subscription_or_budget(speech: Graph) -> None:
    assert not kinds(speech) & {"TopicSubscription", "Budget"}


def test_budget_counts_resources_with_the_clusters_tag(vision: Graph) -> None:
    budget = vision.inputs_of("Budget")["month"]
    assert budget["costFilters"] == [
        {"name": "TagKeyValue", "values": ["user:detcloud-cluster$detcloud-vision"]}
    ]
    assert budget["limitAmount"] == "100"


def test_all_taggable_resources_have_the_clusters_tag(vision: Graph) -> None:
    for resource in vision.resources:
        kind = resource.type.rpartition(":")[2]
        tag = resource.inputs.get("tags", {}).get(TAG)
        assert tag == (None if kind in UNTAGGED else "detcloud-vision"), resource


def test_two_teams_share_no_name_role_or_tag(vision: Graph, speech: Graph) -> None:
    for stack, other in ((vision, "speech"), (speech, "vision")):
        assert not [
            resource.name
            for resource in stack.resources
            if any(other in text for text in texts(resource.inputs))
        ]
    called = {resource.inputs["name"] for resource in vision.resources if "name" in resource.inputs}
    called |= {item["bucket"] for item in vision.inputs_of("Bucket").values()}
    # Names of stages and aliases only have to be unique within an API or a function.
    assert all("vision" in name for name in called - {"$default", "live"})


def test_provider_allows_only_the_stacks_account(vision: Graph) -> None:
    assert json.loads(vision.inputs_of("aws")["aws"]["allowedAccountIds"]) == ["111111111111"]


def test_stack_exports_addresses_and_names(vision: Graph) -> None:
    exported = dict(vision.exported)
    network = json.loads(exported.pop("network"))
    assert network["security_group"] == "SecurityGroup.instances.id"
    assert exported == {
        "url": "Api.api.apiEndpoint",
        "cluster": "detcloud-vision",
        "region": "us-east-1",
        "table": "detcloud-vision",
        "objects": "Bucket.objects.id",
        "checkpoints": "Bucket.checkpoints.id",
        "deadLetters": "Queue.dead-letters.url",
        "alarms": "Topic.alarms.arn",
    }


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"detcloud:region": "here"}, 'detcloud:region is "here": expected a region'),
        ({"detcloud:clusterConfig": "none.yaml"}, "detcloud:clusterConfig: none.yaml cannot be"),
        (
            {"detcloud:archive": "none.zip"},
            "file none.zip does not exist; `python -m infra.aws.bundle",
        ),
    ],
)
def test_program_names_wrong_settings(
    wrong: Mapping[str, str], expected: str, tmp_path: Path
) -> None:
    with pytest.raises(pulumi.RunError) as refused:
        graph_of({**files(tmp_path), **wrong})
    assert expected in str(refused.value)


def test_cluster_configuration_error_names_the_line(tmp_path: Path) -> None:
    given = files(tmp_path)
    (tmp_path / "pools.yaml").write_text("resource_pools:\n  - pool_name: default\n    slots: 3\n")
    with pytest.raises(pulumi.RunError, match=r"pools.yaml:3: resource_pools\[0\].slots"):
        graph_of(given)


def graph_of(more: Mapping[str, str]) -> Graph:
    stack = Graph()
    run_program(run, "vision", {**VISION, **more}, stack)
    return stack
