"""A Pulumi program on AWS's emulator: each registered resource is made through boto3.

Pulumi's and boto3's names of inputs are nearly equal. boto3 refuses unknown inputs, so that no
input is dropped silently.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pulumi

from infra.terraform.recorder import Resource, is_provider, run_program
from tests.emulators.materialised_network import NETWORK
from tests.emulators.ministack import ACCOUNT, REGION, Ministack
from tests.emulators.requests import Inputs, Made, capitalize_names, rename_keys, tag_list


@dataclass(frozen=True)
class EmulatorMaker:
    """A maker of resources.

    `environment`: additional variables of all functions. `streams`: whether the emulator calls the
    functions behind a table's stream.
    """

    aws: Ministack
    environment: Mapping[str, str] = field(default_factory=dict)
    streams: bool = True
    _clients: dict[str, Any] = field(default_factory=dict, init=False)

    def make(self, resource: Resource) -> Made:
        """Make a resource and return its id and outputs. Raise KeyError for a type without a
        recipe.
        """
        if is_provider(resource):
            return resource.name, {}
        recipe = RECIPES.get(resource.type)
        if recipe is None:
            raise KeyError(f"there is no recipe for {resource.type}")
        inputs = dict(resource.inputs)
        if resource.type.startswith("aws:s3/"):
            # Names of buckets are unique in all regions, and the emulator has one region.
            inputs.pop("region", None)
        return recipe(self, inputs)

    def client(self, service: str) -> Any:
        """Return the cached client of a service. Making a client takes longer than a call."""
        if service not in self._clients:
            self._clients[service] = self.aws.client(service)
        return self._clients[service]

    def call(self, service: str, operation: str, request: Mapping[str, Any]) -> Any:
        """Call an operation of boto3. Raise ParamValidationError for unknown parameters."""
        return getattr(self.client(service), operation)(**request)


def materialise(
    program: Callable[[], None], stack: str, config: Mapping[str, str], maker: EmulatorMaker
) -> dict[str, Any]:
    """Make the program's stack on the emulator and return the stack's outputs."""
    return run_program(program, stack, config, maker)


def _table(on: EmulatorMaker, inputs: Inputs) -> Made:
    def keys(of: Inputs) -> list[dict[str, str]]:
        pairs = (("HASH", of.pop("hashKey")), ("RANGE", of.pop("rangeKey")))
        return [{"AttributeName": name, "KeyType": kind} for kind, name in pairs]

    indexes = [
        {
            "IndexName": index.pop("name"),
            "KeySchema": keys(index),
            "Projection": {"ProjectionType": index.pop("projectionType")},
            **index,
        }
        for index in map(dict, inputs.pop("globalSecondaryIndexes"))
    ]
    recovery = inputs.pop("pointInTimeRecovery")
    encryption = capitalize_names(inputs.pop("serverSideEncryption"))
    encryption = rename_keys(encryption, KmsKeyArn="KMSMasterKeyId")
    types = inputs.pop("attributes")
    request = {
        "TableName": inputs.pop("name"),
        "KeySchema": keys(inputs),
        "AttributeDefinitions": [
            {"AttributeName": item["name"], "AttributeType": item["type"]} for item in types
        ],
        "GlobalSecondaryIndexes": indexes,
        "StreamSpecification": {
            "StreamEnabled": inputs.pop("streamEnabled"),
            "StreamViewType": inputs.pop("streamViewType"),
        },
        "SSESpecification": encryption,
        "Tags": tag_list(inputs.pop("tags")),
        **capitalize_names(inputs),
    }
    made = on.call("dynamodb", "create_table", request)["TableDescription"]
    name = request["TableName"]
    settings = {"PointInTimeRecoveryEnabled": recovery["enabled"]}
    backups = {"TableName": name, "PointInTimeRecoverySpecification": settings}
    on.call("dynamodb", "update_continuous_backups", backups)
    return name, {"arn": made["TableArn"], "streamArn": made["LatestStreamArn"]}


def _bucket(on: EmulatorMaker, inputs: Inputs) -> Made:
    # The setting matters only when the bucket is removed.
    inputs.pop("forceDestroy")
    name, tags = inputs["bucket"], inputs.pop("tags")
    on.call("s3", "create_bucket", capitalize_names(inputs))
    on.call("s3", "put_bucket_tagging", {"Bucket": name, "Tagging": {"TagSet": tag_list(tags)}})
    return name, {"arn": f"arn:aws:s3:::{name}"}


def _of_bucket(operation: str, parameter: str, **renames: str) -> Callable[..., Made]:
    """Return a recipe for a bucket's setting: a call with the bucket and a single parameter."""

    def make(on: EmulatorMaker, inputs: Inputs) -> Made:
        bucket = inputs.pop("bucket")
        setting = capitalize_names(rename_keys(inputs, **renames))
        on.call("s3", operation, {"Bucket": bucket, parameter: setting})
        return bucket, {}

    return make


def _bucket_policy(on: EmulatorMaker, inputs: Inputs) -> Made:
    on.call("s3", "put_bucket_policy", capitalize_names(inputs))
    return inputs["bucket"], {}


def _ownership(on: EmulatorMaker, inputs: Inputs) -> Made:
    inputs["rules"] = [inputs.pop("rule")]
    return _of_bucket("put_bucket_ownership_controls", "OwnershipControls")(on, inputs)


def _encryption(on: EmulatorMaker, inputs: Inputs) -> Made:
    names = {"sseAlgorithm": "SSEAlgorithm", "kmsMasterKeyId": "KMSMasterKeyID"}
    default = "applyServerSideEncryptionByDefault"
    inputs["rules"] = [
        {**rule, default: rename_keys(rule[default], **names)} for rule in inputs["rules"]
    ]
    parameter = "ServerSideEncryptionConfiguration"
    return _of_bucket("put_bucket_encryption", parameter)(on, inputs)


def _lifecycle(on: EmulatorMaker, inputs: Inputs) -> Made:
    inputs["rules"] = [rename_keys(rule, id="ID") for rule in inputs["rules"]]
    operation = "put_bucket_lifecycle_configuration"
    return _of_bucket(operation, "LifecycleConfiguration")(on, inputs)


def _versioning(on: EmulatorMaker, inputs: Inputs) -> Made:
    given = {"bucket": inputs["bucket"], **inputs["versioningConfiguration"]}
    return _of_bucket("put_bucket_versioning", "VersioningConfiguration")(on, given)


def _replication(on: EmulatorMaker, inputs: Inputs) -> Made:
    inputs["rules"] = [rename_keys(rule, id="ID") for rule in inputs["rules"]]
    return _of_bucket("put_bucket_replication", "ReplicationConfiguration")(on, inputs)


def _schedule(on: EmulatorMaker, inputs: Inputs) -> Made:
    on.call("scheduler", "create_schedule", capitalize_names(inputs))
    return inputs["name"], {}


def _object(on: EmulatorMaker, inputs: Inputs) -> Made:
    inputs.pop("sourceHash", None)
    if (source := inputs.pop("source", None)) is not None:
        inputs["content"] = Path(source.path).read_bytes()
    on.call("s3", "put_object", capitalize_names(rename_keys(inputs, content="body")))
    return inputs["key"], {}


def _ecs_cluster(on: EmulatorMaker, inputs: Inputs) -> Made:
    inputs["tags"] = [{"key": key, "value": text} for key, text in inputs["tags"].items()]
    made = on.call("ecs", "create_cluster", rename_keys(inputs, name="clusterName"))
    return made["cluster"]["clusterArn"], {"arn": made["cluster"]["clusterArn"]}


def _task_definition(on: EmulatorMaker, inputs: Inputs) -> Made:
    inputs["tags"] = [{"key": key, "value": text} for key, text in inputs["tags"].items()]
    inputs["containerDefinitions"] = json.loads(inputs["containerDefinitions"])
    made = on.call("ecs", "register_task_definition", inputs)["taskDefinition"]
    return made["taskDefinitionArn"], {"arn": made["taskDefinitionArn"]}


def _role(on: EmulatorMaker, inputs: Inputs) -> Made:
    inputs["tags"] = tag_list(inputs["tags"])
    names = {"name": "roleName", "assumeRolePolicy": "assumeRolePolicyDocument"}
    made = on.call("iam", "create_role", capitalize_names(rename_keys(inputs, **names)))
    return inputs["name"], {"arn": made["Role"]["Arn"]}


def _role_policy(on: EmulatorMaker, inputs: Inputs) -> Made:
    names = {"name": "policyName", "role": "roleName", "policy": "policyDocument"}
    on.call("iam", "put_role_policy", capitalize_names(rename_keys(inputs, **names)))
    return f"{inputs['role']}:{inputs['name']}", {}


def _instance_profile(on: EmulatorMaker, inputs: Inputs) -> Made:
    inputs["tags"] = tag_list(inputs["tags"])
    name, role = inputs["name"], inputs.pop("role")
    request = capitalize_names(rename_keys(inputs, name="instanceProfileName"))
    made = on.call("iam", "create_instance_profile", request)["InstanceProfile"]
    joined = {"InstanceProfileName": name, "RoleName": role}
    on.call("iam", "add_role_to_instance_profile", joined)
    return name, {"arn": made["Arn"]}


def _log_group(on: EmulatorMaker, inputs: Inputs) -> Made:
    name, days = inputs["name"], inputs.pop("retentionInDays")
    on.call("logs", "create_log_group", rename_keys(inputs, name="logGroupName"))
    on.call("logs", "put_retention_policy", {"logGroupName": name, "retentionInDays": days})
    groups = on.call("logs", "describe_log_groups", {"logGroupNamePrefix": name})
    return name, {"arn": groups["logGroups"][0]["arn"].removesuffix(":*")}


def _metric_filter(on: EmulatorMaker, inputs: Inputs) -> Made:
    transformation = inputs.pop("metricTransformation")
    names = {"name": "metricName", "namespace": "metricNamespace", "value": "metricValue"}
    inputs["metricTransformations"] = [rename_keys(transformation, **names)]
    names = {"name": "filterName", "pattern": "filterPattern"}
    on.call("logs", "put_metric_filter", rename_keys(inputs, **names))
    return inputs["name"], {}


def _function(on: EmulatorMaker, inputs: Inputs) -> Made:
    code = inputs.pop("code")
    assert isinstance(code, pulumi.FileArchive)
    at_once = inputs.pop("reservedConcurrentExecutions", None)
    variables = {**inputs.pop("environment")["variables"], **on.environment}
    request = capitalize_names(rename_keys(inputs, name="functionName"))
    request["Environment"] = {"Variables": variables}
    request["Code"] = {"ZipFile": Path(code.path).read_bytes()}
    made = on.call("lambda", "create_function", request)
    # The ARN of the function, without the version.
    arn = ":".join(made["FunctionArn"].split(":")[:7])
    if at_once not in (None, -1):
        reserved = {"FunctionName": arn, "ReservedConcurrentExecutions": at_once}
        on.call("lambda", "put_function_concurrency", reserved)
    region = arn.split(":")[3]
    invoked = f"arn:aws:apigateway:{region}:lambda:path/2015-03-31/functions/{arn}/invocations"
    return inputs["name"], {"arn": arn, "invokeArn": invoked, "version": made["Version"]}


def _alias(on: EmulatorMaker, inputs: Inputs) -> Made:
    made = on.call("lambda", "create_alias", capitalize_names(inputs))
    arn = made["AliasArn"]
    region = arn.split(":")[3]
    invoked = f"arn:aws:apigateway:{region}:lambda:path/2015-03-31/functions/{arn}/invocations"
    return arn, {"arn": arn, "invokeArn": invoked}


def _stream_mapping(on: EmulatorMaker, inputs: Inputs) -> Made:
    request = capitalize_names(inputs)
    if failed := inputs.get("destinationConfig"):
        arn = rename_keys(failed["onFailure"], destinationArn="Destination")
        request["DestinationConfig"] = {**request["DestinationConfig"], "OnFailure": arn}
    made = on.call("lambda", "create_event_source_mapping", {**request, "Enabled": on.streams})
    return made["UUID"], {}


def _permission(on: EmulatorMaker, inputs: Inputs) -> Made:
    source = sha256(inputs["sourceArn"].encode()).hexdigest()[:8]
    function, name = inputs["function"], f"from-{inputs['principal'].split('.')[0]}-{source}"
    request = capitalize_names(rename_keys(inputs, function="functionName"))
    on.call("lambda", "add_permission", {**request, "StatementId": name})
    return f"{function}:{name}", {}


def _invoke_config(on: EmulatorMaker, inputs: Inputs) -> Made:
    on.call("lambda", "put_function_event_invoke_config", capitalize_names(inputs))
    return inputs["functionName"], {}


def _rule(on: EmulatorMaker, inputs: Inputs) -> Made:
    inputs["tags"] = tag_list(inputs["tags"])
    arn = on.call("events", "put_rule", capitalize_names(inputs))["RuleArn"]
    return inputs["name"], {"arn": arn}


def _target(on: EmulatorMaker, inputs: Inputs) -> Made:
    rule = inputs.pop("rule")
    target = capitalize_names(rename_keys(inputs, targetId="id"))
    on.call("events", "put_targets", {"Rule": rule, "Targets": [target]})
    return f"{rule}-{inputs['targetId']}", {}


def _api(on: EmulatorMaker, inputs: Inputs) -> Made:
    name = on.call("apigatewayv2", "create_api", capitalize_names(inputs))["ApiId"]
    # The emulator's host names do not resolve here, so the URL uses a path.
    url = f"{on.aws.url}/_aws/execute-api/{name}/$default"
    return name, {
        "apiEndpoint": url,
        "executionArn": f"arn:aws:execute-api:{REGION}:{ACCOUNT}:{name}",
    }


def _of_api(operation: str, answer: str, **names: str) -> Callable[..., Made]:
    def make(on: EmulatorMaker, inputs: Inputs) -> Made:
        made = on.call("apigatewayv2", operation, capitalize_names(rename_keys(inputs, **names)))
        return made[answer], {}

    return make


def _stage(on: EmulatorMaker, inputs: Inputs) -> Made:
    settings = [dict(route_setting) for route_setting in inputs.pop("routeSettings")]
    by_route = {setting.pop("routeKey"): capitalize_names(setting) for setting in settings}
    request = capitalize_names(rename_keys(inputs, name="stageName"))
    made = on.call("apigatewayv2", "create_stage", {**request, "RouteSettings": by_route})
    return made["StageName"], {}


def _domain(on: EmulatorMaker, inputs: Inputs) -> Made:
    configuration = inputs.pop("domainNameConfiguration")
    request = capitalize_names({**inputs, "domainNameConfigurations": [configuration]})
    made = on.call("apigatewayv2", "create_domain_name", request)
    [told] = made["DomainNameConfigurations"]
    names = {"targetDomainName": told["ApiGatewayDomainName"], "hostedZoneId": told["HostedZoneId"]}
    return inputs["domainName"], {"domainNameConfiguration": {**configuration, **names}}


def _record(on: EmulatorMaker, inputs: Inputs) -> Made:
    [alias] = inputs.pop("aliases")
    target = rename_keys(alias, name="DNSName", zoneId="HostedZoneId")
    record = {"Name": inputs.pop("name"), "Type": inputs.pop("type")}
    record["AliasTarget"] = capitalize_names(target)
    zone = inputs.pop("zoneId")
    change = {"Action": "CREATE", "ResourceRecordSet": record, **inputs}
    request = {"HostedZoneId": zone, "ChangeBatch": {"Changes": [change]}}
    on.call("route53", "change_resource_record_sets", request)
    return f"{zone}_{record['Name']}_{record['Type']}", {}


def _grant(on: EmulatorMaker, inputs: Inputs) -> Made:
    made = on.call("kms", "create_grant", capitalize_names(inputs))
    return made["GrantId"], {}


def _queue(on: EmulatorMaker, inputs: Inputs) -> Made:
    name, tags = inputs.pop("name"), inputs.pop("tags")
    # boto3 does not check these parameters.
    names = {
        "messageRetentionSeconds": "MessageRetentionPeriod",
        "sqsManagedSseEnabled": "SqsManagedSseEnabled",
    }
    policy = {"Policy": policy} if (policy := inputs.pop("policy", "")) else {}
    attributes = {names[key]: str(value).lower() for key, value in inputs.items()} | policy
    request = {"QueueName": name, "Attributes": attributes, "tags": tags}
    url = on.call("sqs", "create_queue", request)["QueueUrl"]
    asked = {"QueueUrl": url, "AttributeNames": ["QueueArn"]}
    arn = on.call("sqs", "get_queue_attributes", asked)["Attributes"]["QueueArn"]
    return url, {"url": url, "arn": arn}


def _topic(on: EmulatorMaker, inputs: Inputs) -> Made:
    inputs["tags"] = tag_list(inputs["tags"])
    arn = on.call("sns", "create_topic", capitalize_names(inputs))["TopicArn"]
    return arn, {"arn": arn}


def _topic_policy(on: EmulatorMaker, inputs: Inputs) -> Made:
    arn, policy = inputs.pop("arn"), inputs.pop("policy")
    request = {"TopicArn": arn, "AttributeName": "Policy", "AttributeValue": policy}
    on.call("sns", "set_topic_attributes", {**request, **inputs})
    return arn, {}


def _subscription(on: EmulatorMaker, inputs: Inputs) -> Made:
    made = on.call("sns", "subscribe", capitalize_names(rename_keys(inputs, topic="topicArn")))
    return made["SubscriptionArn"], {}


def _alarm(on: EmulatorMaker, inputs: Inputs) -> Made:
    inputs["tags"] = tag_list(inputs["tags"])
    if dimensions := inputs.get("dimensions"):
        inputs["dimensions"] = _dimensions(dimensions)
    if queries := inputs.pop("metricQueries", None):
        inputs["metrics"] = [_query(dict(query)) for query in queries]
    on.call(
        "cloudwatch", "put_metric_alarm", capitalize_names(rename_keys(inputs, name="alarmName"))
    )
    return inputs["name"], {}


def _dashboard(on: EmulatorMaker, inputs: Inputs) -> Made:
    on.call("cloudwatch", "put_dashboard", capitalize_names(inputs))
    return inputs["dashboardName"], {}


def _query(query: Inputs) -> Inputs:
    if metric := dict(query.pop("metric", {})):
        fields = {key: metric.pop(key) for key in ("stat", "period")}
        metric["dimensions"] = _dimensions(metric["dimensions"])
        query |= {"metricStat": {"metric": metric, **fields}, "returnData": False}
    return query


def _dimensions(dimensions: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in dimensions.items()]


def _in_ec2(make: Callable[[Any, Inputs], Made]) -> Callable[[EmulatorMaker, Inputs], Made]:
    return lambda on, inputs: make(on.client("ec2"), inputs)


RECIPES: dict[str, Callable[[EmulatorMaker, Inputs], Made]] = {
    "aws:apigatewayv2/api:Api": _api,
    "aws:apigatewayv2/apiMapping:ApiMapping": _of_api("create_api_mapping", "ApiMappingId"),
    "aws:apigatewayv2/domainName:DomainName": _domain,
    "aws:apigatewayv2/integration:Integration": _of_api("create_integration", "IntegrationId"),
    "aws:apigatewayv2/route:Route": _of_api("create_route", "RouteId"),
    "aws:apigatewayv2/stage:Stage": _stage,
    "aws:cloudwatch/dashboard:Dashboard": _dashboard,
    "aws:cloudwatch/eventRule:EventRule": _rule,
    "aws:cloudwatch/eventTarget:EventTarget": _target,
    "aws:cloudwatch/logGroup:LogGroup": _log_group,
    "aws:cloudwatch/logMetricFilter:LogMetricFilter": _metric_filter,
    "aws:cloudwatch/metricAlarm:MetricAlarm": _alarm,
    "aws:dynamodb/table:Table": _table,
    "aws:ecs/cluster:Cluster": _ecs_cluster,
    "aws:ecs/taskDefinition:TaskDefinition": _task_definition,
    "aws:kms/grant:Grant": _grant,
    "aws:iam/instanceProfile:InstanceProfile": _instance_profile,
    "aws:iam/role:Role": _role,
    "aws:iam/rolePolicy:RolePolicy": _role_policy,
    "aws:lambda/eventSourceMapping:EventSourceMapping": _stream_mapping,
    "aws:lambda/alias:Alias": _alias,
    "aws:lambda/function:Function": _function,
    "aws:lambda/functionEventInvokeConfig:FunctionEventInvokeConfig": _invoke_config,
    "aws:lambda/permission:Permission": _permission,
    "aws:route53/record:Record": _record,
    "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration": _lifecycle,
    "aws:s3/bucketObjectv2:BucketObjectv2": _object,
    "aws:s3/bucketOwnershipControls:BucketOwnershipControls": _ownership,
    "aws:s3/bucketPolicy:BucketPolicy": _bucket_policy,
    "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock": _of_bucket(
        "put_public_access_block", "PublicAccessBlockConfiguration"
    ),
    "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration": (
        _encryption
    ),
    "aws:s3/bucketVersioning:BucketVersioning": _versioning,
    "aws:s3/bucket:Bucket": _bucket,
    "aws:s3/bucketReplicationConfig:BucketReplicationConfig": _replication,
    "aws:scheduler/schedule:Schedule": _schedule,
    "aws:sns/topic:Topic": _topic,
    "aws:sns/topicPolicy:TopicPolicy": _topic_policy,
    "aws:sns/topicSubscription:TopicSubscription": _subscription,
    "aws:sqs/queue:Queue": _queue,
    **{token: _in_ec2(make) for token, make in NETWORK.items()},
}
