"""The IAM policy with the minimal permissions for deploying a team's stack.

It covers creating, reading, changing and deleting each type of resource in a stack, and the calls
of `check`, `rollback`, `verify` and `destroy`. `infra/aws/deployer_policy.json` is the policy of
the team `TEAM`; `python -m infra.aws.deployer` regenerates the file. `detcloud deploy policy aws`
prints a team's own policy.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from infra.aws.key_policies import key_use
from infra.aws.launch_policies import dry_launches, service_role_arn
from infra.aws.names import Names, bucket_arn
from infra.aws.policy_statements import (
    Condition,
    Document,
    Statement,
    make_document,
    make_statement,
)
from infra.aws.settings import Settings
from provisioner.clouds.provider import CLUSTER_TAG

POLICY_FILE: Final = Path(__file__).with_name("deployer_policy.json")
EXAMPLE: Final = Settings("TEAM", "ACCOUNT", "REGION", "pools.yaml", "")

# The permissions that each type of resource needs, as SERVICE: ACTION ACTION.
_API = "apigateway: DELETE GET PATCH POST PUT"
_RULE = "ec2: DescribeSecurityGroupRules ModifySecurityGroupRules"
_BUCKET_PART = "s3: ListBucket"
NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "aws:apigatewayv2/api:Api": (_API,),
    "aws:apigatewayv2/apiMapping:ApiMapping": (_API,),
    "aws:apigatewayv2/domainName:DomainName": (_API, "iam: CreateServiceLinkedRole"),
    "aws:apigatewayv2/integration:Integration": (_API,),
    "aws:apigatewayv2/route:Route": (_API,),
    # The request log is a log delivery, which the service creates with the caller's permissions.
    "aws:apigatewayv2/stage:Stage": (
        _API,
        "logs: CreateLogDelivery DeleteLogDelivery DescribeLogGroups DescribeResourcePolicies "
        "GetLogDelivery ListLogDeliveries PutResourcePolicy UpdateLogDelivery",
    ),
    "aws:budgets/budget:Budget": (
        "budgets: ListTagsForResource ModifyBudget TagResource UntagResource ViewBudget",
    ),
    "aws:cloudwatch/dashboard:Dashboard": (
        "cloudwatch: DeleteDashboards GetDashboard PutDashboard",
    ),
    "aws:cloudwatch/eventRule:EventRule": (
        "events: DeleteRule DescribeRule ListTagsForResource PutRule TagResource UntagResource",
    ),
    "aws:cloudwatch/eventTarget:EventTarget": (
        "events: ListTargetsByRule PutTargets RemoveTargets",
    ),
    "aws:cloudwatch/logGroup:LogGroup": (
        "logs: AssociateKmsKey CreateLogGroup DeleteLogGroup DeleteRetentionPolicy "
        "DescribeLogGroups DisassociateKmsKey ListTagsForResource PutRetentionPolicy TagResource "
        "UntagResource",
    ),
    "aws:cloudwatch/logMetricFilter:LogMetricFilter": (
        "logs: DeleteMetricFilter DescribeMetricFilters PutMetricFilter",
    ),
    "aws:cloudwatch/metricAlarm:MetricAlarm": (
        "cloudwatch: DeleteAlarms DescribeAlarms ListTagsForResource PutMetricAlarm TagResource "
        "UntagResource",
    ),
    "aws:dynamodb/table:Table": (
        "dynamodb: CreateTable DeleteTable DescribeContinuousBackups DescribeTable "
        "DescribeTimeToLive ListTagsOfResource TagResource UntagResource UpdateContinuousBackups "
        "UpdateTable",
    ),
    "aws:ec2/eip:Eip": (
        "ec2: AllocateAddress CreateTags DeleteTags DescribeAddresses DescribeAddressesAttribute "
        "DisassociateAddress ReleaseAddress",
    ),
    "aws:ec2/internetGateway:InternetGateway": (
        "ec2: AttachInternetGateway CreateInternetGateway CreateTags DeleteInternetGateway "
        "DeleteTags DescribeInternetGateways DetachInternetGateway",
    ),
    "aws:ec2/natGateway:NatGateway": (
        "ec2: CreateNatGateway CreateTags DeleteNatGateway DeleteTags DescribeNatGateways",
    ),
    "aws:ec2/placementGroup:PlacementGroup": (
        "ec2: CreatePlacementGroup CreateTags DeletePlacementGroup DeleteTags "
        "DescribePlacementGroups",
    ),
    "aws:ec2/route:Route": ("ec2: CreateRoute DeleteRoute DescribeRouteTables ReplaceRoute",),
    "aws:ec2/routeTable:RouteTable": (
        "ec2: CreateRouteTable CreateTags DeleteRouteTable DeleteTags DescribeRouteTables",
    ),
    "aws:ec2/routeTableAssociation:RouteTableAssociation": (
        "ec2: AssociateRouteTable DescribeRouteTables DisassociateRouteTable "
        "ReplaceRouteTableAssociation",
    ),
    "aws:ec2/securityGroup:SecurityGroup": (
        # The provider revokes a new group's default egress rule, and waits for interfaces that
        # still use a group before deleting the group.
        "ec2: CreateSecurityGroup CreateTags DeleteSecurityGroup DeleteTags "
        "DescribeNetworkInterfaces DescribeSecurityGroups RevokeSecurityGroupEgress",
    ),
    "aws:ec2/subnet:Subnet": (
        "ec2: CreateSubnet CreateTags DeleteSubnet DeleteTags DescribeNetworkInterfaces "
        "DescribeSubnets ModifySubnetAttribute",
    ),
    "aws:ec2/vpc:Vpc": (
        "ec2: CreateTags CreateVpc DeleteTags DeleteVpc DescribeNetworkAcls DescribeRouteTables "
        "DescribeSecurityGroups DescribeVpcAttribute DescribeVpcs ModifyVpcAttribute",
    ),
    "aws:ec2/vpcEndpoint:VpcEndpoint": (
        "ec2: CreateTags CreateVpcEndpoint DeleteTags DeleteVpcEndpoints DescribePrefixLists "
        "DescribeVpcEndpoints ModifyVpcEndpoint",
    ),
    "aws:cloudfront/distribution:Distribution": (
        "cloudfront: CreateDistribution DeleteDistribution GetDistribution ListTagsForResource "
        "TagResource UntagResource UpdateDistribution",
        "wafv2: GetWebACL",
    ),
    # The first cluster of an account makes the service role of ECS, with the caller's permissions.
    "aws:ecs/cluster:Cluster": (
        "ecs: CreateCluster DeleteCluster DescribeClusters ListTagsForResource TagResource "
        "UntagResource",
        "iam: CreateServiceLinkedRole",
    ),
    "aws:ecs/taskDefinition:TaskDefinition": (
        "ecs: DeregisterTaskDefinition DescribeTaskDefinition ListTagsForResource "
        "RegisterTaskDefinition TagResource UntagResource",
        "iam: PassRole",
    ),
    "aws:iam/instanceProfile:InstanceProfile": (
        "iam: AddRoleToInstanceProfile CreateInstanceProfile DeleteInstanceProfile "
        "GetInstanceProfile PassRole RemoveRoleFromInstanceProfile TagInstanceProfile "
        "UntagInstanceProfile",
    ),
    "aws:iam/role:Role": (
        "iam: CreateRole DeleteRole DeleteRolePermissionsBoundary GetRole "
        "ListAttachedRolePolicies ListInstanceProfilesForRole ListRolePolicies "
        "PutRolePermissionsBoundary TagRole UntagRole UpdateAssumeRolePolicy UpdateRole",
    ),
    "aws:iam/rolePolicy:RolePolicy": ("iam: DeleteRolePolicy GetRolePolicy PutRolePolicy",),
    "aws:kms/grant:Grant": ("kms: CreateGrant DescribeKey ListGrants RevokeGrant",),
    "aws:lambda/alias:Alias": ("lambda: CreateAlias DeleteAlias GetAlias UpdateAlias",),
    "aws:lambda/eventSourceMapping:EventSourceMapping": (
        "lambda: CreateEventSourceMapping DeleteEventSourceMapping GetEventSourceMapping ListTags "
        "TagResource UntagResource UpdateEventSourceMapping",
    ),
    "aws:lambda/function:Function": (
        "iam: PassRole",
        "lambda: CreateFunction DeleteFunction DeleteFunctionConcurrency GetFunction "
        "GetFunctionCodeSigningConfig GetFunctionConcurrency GetFunctionConfiguration ListTags "
        "ListVersionsByFunction PublishVersion PutFunctionConcurrency TagResource UntagResource "
        "UpdateFunctionCode UpdateFunctionConfiguration",
    ),
    "aws:lambda/functionEventInvokeConfig:FunctionEventInvokeConfig": (
        "lambda: DeleteFunctionEventInvokeConfig GetFunctionEventInvokeConfig "
        "PutFunctionEventInvokeConfig UpdateFunctionEventInvokeConfig",
    ),
    "aws:lambda/permission:Permission": ("lambda: AddPermission GetPolicy RemovePermission",),
    "aws:route53/record:Record": (
        "route53: ChangeResourceRecordSets GetChange GetHostedZone ListResourceRecordSets",
    ),
    "aws:s3/bucket:Bucket": (
        # The provider reads every feature of a bucket, and deletes the objects before the bucket.
        "s3: CreateBucket DeleteBucket DeleteObject DeleteObjectVersion GetAccelerateConfiguration "
        "GetBucketAcl GetBucketCORS GetBucketLocation GetBucketLogging "
        "GetBucketObjectLockConfiguration GetBucketPolicy GetBucketRequestPayment "
        "GetBucketTagging GetBucketVersioning GetBucketWebsite GetEncryptionConfiguration "
        "GetLifecycleConfiguration GetReplicationConfiguration ListBucket ListBucketVersions "
        "PutBucketTagging",
    ),
    "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration": (
        "s3: GetLifecycleConfiguration PutLifecycleConfiguration",
    ),
    "aws:s3/bucketObjectv2:BucketObjectv2": (
        "s3: DeleteObject GetObject GetObjectTagging PutObject",
    ),
    "aws:s3/bucketOwnershipControls:BucketOwnershipControls": (
        "s3: GetBucketOwnershipControls PutBucketOwnershipControls",
    ),
    "aws:s3/bucketPolicy:BucketPolicy": ("s3: DeleteBucketPolicy GetBucketPolicy PutBucketPolicy",),
    "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock": (
        "s3: GetBucketPublicAccessBlock PutBucketPublicAccessBlock",
    ),
    "aws:s3/bucketReplicationConfig:BucketReplicationConfig": (
        "iam: PassRole",
        "s3: GetReplicationConfiguration PutReplicationConfiguration",
    ),
    "aws:s3/bucketVersioning:BucketVersioning": ("s3: GetBucketVersioning PutBucketVersioning",),
    "aws:scheduler/schedule:Schedule": (
        "iam: PassRole",
        "scheduler: CreateSchedule DeleteSchedule GetSchedule UpdateSchedule",
    ),
    "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration": (
        "s3: GetEncryptionConfiguration PutEncryptionConfiguration",
    ),
    "aws:sns/topic:Topic": (
        "sns: CreateTopic DeleteTopic GetTopicAttributes ListTagsForResource SetTopicAttributes "
        "TagResource UntagResource",
    ),
    "aws:sns/topicPolicy:TopicPolicy": ("sns: GetTopicAttributes SetTopicAttributes",),
    "aws:sns/topicSubscription:TopicSubscription": (
        "sns: GetSubscriptionAttributes Subscribe Unsubscribe",
    ),
    "aws:sqs/queue:Queue": (
        "sqs: CreateQueue DeleteQueue GetQueueAttributes GetQueueUrl ListQueueTags "
        "SetQueueAttributes TagQueue UntagQueue",
    ),
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": (
        _RULE,
        "ec2: AuthorizeSecurityGroupEgress CreateTags DeleteTags RevokeSecurityGroupEgress",
    ),
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": (
        _RULE,
        "ec2: AuthorizeSecurityGroupIngress CreateTags DeleteTags RevokeSecurityGroupIngress",
    ),
}
CHECK_NEEDS: Final = (
    "ec2: DescribeImages DescribeInstanceTypeOfferings DescribeInstanceTypes "
    "DescribeNetworkInterfaces DescribeSecurityGroups DescribeSubnets "
    "DescribeVpcBlockPublicAccessExclusions DescribeVpcBlockPublicAccessOptions DescribeVpcs "
    "GetAllowedImagesSettings GetEbsDefaultKmsKeyId",
    "elasticfilesystem: DescribeMountTargets",
    "freetier: GetAccountPlanState",
    "fsx: DescribeFileSystems",
    "iam: GetInstanceProfile GetRole SimulatePrincipalPolicy",
    "kms: DescribeKey GetKeyPolicy",
    "lambda: GetAccountSettings GetFunctionConcurrency ListEventSourceMappings",
    "servicequotas: GetServiceQuota",
    "ssm: GetParameters",
)
# Stacks of earlier versions have an attached policy of AWS, which the next deployment detaches.
UPGRADE_NEEDS: Final = ("iam: DetachRolePolicy ListAttachedRolePolicies",)
ROLLBACK_NEEDS: Final = ("lambda: DeleteFunction GetAlias ListVersionsByFunction UpdateAlias",)
DESTROY_NEEDS: Final = (
    "ec2: DeleteLaunchTemplate DescribeInstances DescribeLaunchTemplates TerminateInstances",
    "ecs: ListTasks StopTask",
    "lambda: DeleteFunctionConcurrency PutFunctionConcurrency",
    "tag: GetResources",
)
VERIFY_NEEDS: Final = (
    "cloudwatch: DescribeAlarmHistory DescribeAlarms SetAlarmState",
    "ec2: DescribeInstances DescribeSpotPriceHistory TerminateInstances",
    "lambda: InvokeFunction",
)
# Actions that accept no resource in a policy, or that read resources of other owners.
_ABOUT_NOTHING: Final = (
    "cloudwatch: DescribeAlarms",
    "ec2: GetAllowedImagesSettings GetEbsDefaultKmsKeyId",
    "ecs: DeregisterTaskDefinition DescribeTaskDefinition ListTasks",
    "elasticfilesystem: DescribeMountTargets",
    "freetier: GetAccountPlanState",
    "fsx: DescribeFileSystems",
    "iam: SimulatePrincipalPolicy",
    "lambda: CreateEventSourceMapping GetAccountSettings GetEventSourceMapping "
    "ListEventSourceMappings",
    "logs: CreateLogDelivery DeleteLogDelivery DescribeLogGroups DescribeResourcePolicies "
    "GetLogDelivery ListLogDeliveries PutResourcePolicy UpdateLogDelivery",
    "servicequotas: GetServiceQuota",
    "sns: GetSubscriptionAttributes Unsubscribe",
    "tag: GetResources",
)
# Actions that only the setting `copies` needs.
_OF_COPIES: Final = frozenset({"s3:PutReplicationConfiguration"})
# Actions that only the setting `dashboard` needs.
_OF_DASHBOARD: Final = frozenset(
    {"cloudwatch:DeleteDashboards", "cloudwatch:GetDashboard", "cloudwatch:PutDashboard"}
)
# Actions with their own statements.
_SPECIAL: Final = frozenset({"iam:CreateServiceLinkedRole", "iam:PassRole"})
_CREATORS: Final = ("Create", "Allocate", "Authorize")


def split_actions(needs: Iterable[str]) -> Iterator[str]:
    """Yield SERVICE:ACTION for each action of texts like `SERVICE: ACTION ACTION`."""
    for text in needs:
        service, _, actions = text.partition(": ")
        yield from (f"{service}:{action}" for action in actions.split())


def actions_needed() -> frozenset[str]:
    """Return all SERVICE:ACTION that deploy, check, rollback, verify and destroy may call."""
    texts = [text for needs in NEEDS.values() for text in needs]
    others = (*CHECK_NEEDS, *UPGRADE_NEEDS, *ROLLBACK_NEEDS, *VERIFY_NEEDS, *DESTROY_NEEDS)
    return frozenset(split_actions((*texts, *others)))


def check_actions() -> frozenset[str]:
    """Return each SERVICE:ACTION that only the check of an account calls.

    A deployment works without these permissions.
    """
    texts = [text for needs in NEEDS.values() for text in needs]
    others = split_actions((*texts, *ROLLBACK_NEEDS, *VERIFY_NEEDS, *DESTROY_NEEDS))
    return frozenset(split_actions(CHECK_NEEDS)) - frozenset(others)


def deployer_policy(settings: Settings) -> Document:
    """Return the deployer's policy for a stack with the settings.

    Statements about `kms_key`, `hosted_zone`, `web_acl`, `permissions_boundary` and `copies` are
    included only if the setting is set. The size stays below IAM's limit of 10,240 characters for
    the inline policies of a role.
    """
    names = settings.names
    services: dict[str, list[str]] = {}
    anywhere, about_nothing = [], frozenset(split_actions(_ABOUT_NOTHING))
    left_out = _SPECIAL if settings.copies else _SPECIAL | _OF_COPIES
    left_out = left_out if settings.dashboard else left_out | _OF_DASHBOARD
    for action in sorted(actions_needed() - left_out):
        service, _, name = action.partition(":")
        if action in about_nothing or (service == "ec2" and name.startswith("Describe")):
            anywhere.append(action)
        else:
            services.setdefault(service, []).append(action)
    ec2, key, dns = (services.pop(name) for name in ("ec2", "kms", "route53"))
    front, firewall = services.pop("cloudfront"), services.pop("wafv2")
    schedules = services.pop("scheduler")
    places = _places(settings)
    # An action of a service never fits a resource of another service, and each statement counts
    # towards the policy's size.
    own = _statement(
        "Own",
        [action for actions in services.values() for action in actions],
        [place for service in services for place in places[service]],
    )
    statements = [own, _statement("Look", anywhere, ["*"]), *_network(names, ec2)]
    statements += _roles(settings)
    if settings.kms_key:
        statements += _key(settings, key)
    if settings.copies:
        folder = f"arn:aws:scheduler:{names.region}:{names.account}:schedule/default"
        statements.append(_statement("Exports", schedules, [f"{folder}/{names.cluster}-*"]))
    if settings.hosted_zone:
        zone = f"arn:aws:route53:::hostedzone/{settings.hosted_zone}"
        statements.append(_statement("Dns", dns, [zone, "arn:aws:route53:::change/*"]))
    if settings.web_acl:
        # AWS chooses the ids of distributions, so a policy cannot select distributions by name.
        distributions = [f"arn:aws:cloudfront::{names.account}:distribution/*"]
        statements.append(_statement("Front", front, distributions))
        statements.append(_statement("Acl", firewall, [settings.web_acl]))
    return make_document(*statements)


def launch_policy(settings: Settings) -> Document:
    """Return the policy with which the check asks EC2 about the pools' launches.

    A deployer needs the policy only for this part of the check. It is a separate document because
    it allows launches, and because IAM limits the size of a policy.
    """
    return make_document(*dry_launches(settings.names, settings.network))


def render_policy(settings: Settings) -> str:
    """Return the deployer's policy as indented JSON with a final newline."""
    return json.dumps(deployer_policy(settings), indent=1) + "\n"


def _statement(
    sid: str,
    actions: Iterable[str],
    resources: Iterable[str],
    condition: Condition | None = None,
) -> Statement:
    """Return a statement called `sid` that allows the actions on the resources.

    Empty resources and a condition of None are left out.
    """
    return make_statement(sid, list(actions), list(resources), condition)


def _places(settings: Settings) -> Mapping[str, list[str]]:
    """Return the ARN patterns of a team's resources by AWS service, such as `dynamodb`.

    The patterns contain the cluster's name, which keeps other teams' resources out, with these
    exceptions:

    - All APIs, custom domain names and their tags, and all event source mappings of the region.
    - AWS's own parameters in the region.
    - The account's service role of EC2's spot market.
    """
    names = settings.names
    account, region, name = names.account, names.region, names.cluster
    own = f"{region}:{account}"
    buckets = [bucket_arn(names.objects), bucket_arn(names.checkpoints)]
    # One pattern for all copies keeps the policy short.
    buckets += [bucket_arn(names.copy("*"))] if settings.copies else []
    gateway = f"arn:aws:apigateway:{region}::"
    kinds = ("role", "instance-profile")
    roles = [f"arn:aws:iam::{account}:{kind}{names.iam_path}{names.role('')}*" for kind in kinds]
    return {
        # AWS chooses the ids of APIs, so a policy cannot select APIs by name.
        "apigateway": [f"{gateway}/{word}" for word in ("apis*", "domainnames*", "tags/*")],
        "budgets": [f"arn:aws:budgets::{account}:budget/{name}-*"],
        "cloudwatch": [
            f"arn:aws:cloudwatch:{own}:alarm:{name}-*",
            *([names.dashboard_arn] if settings.dashboard else []),
        ],
        "dynamodb": [names.table_arn],
        # The cluster, the definitions of tasks, and the tasks.
        "ecs": [f"arn:aws:ecs:{own}:*/{name}-relay*"],
        "events": [f"arn:aws:events:{own}:rule/{name}-*"],
        "iam": [*roles, service_role_arn(names, "spot")],
        "lambda": [
            f"arn:aws:lambda:{own}:function:{name}-*",
            f"arn:aws:lambda:{own}:event-source-mapping:*",
        ],
        # The groups of the functions, the relay and the gateway.
        "logs": [f"arn:aws:logs:{own}:log-group:/aws/*/{name}-*"],
        "s3": [f"{bucket}{below}" for bucket in buckets for below in ("", "/*")],
        "sns": [f"arn:aws:sns:{own}:{name}-*"],
        "sqs": [f"arn:aws:sqs:{own}:{name}-*"],
        "ssm": [f"arn:aws:ssm:{region}::parameter/aws/service/*"],
    }


def _network(names: Names, actions: list[str]) -> list[Statement]:
    """Return statements that allow EC2 `actions` only on resources with the cluster's tag.

    Creating actions except CreateRoute are also allowed if the request sets the tag.
    """
    everything = [names.ec2_arn("*")]
    tag, value = f"aws:RequestTag/{CLUSTER_TAG}", names.cluster
    creating = [action for action in actions if action.partition(":")[2].startswith(_CREATORS)]
    creating.remove("ec2:CreateRoute")
    owned = {"StringEquals": {f"ec2:ResourceTag/{CLUSTER_TAG}": value}}
    return [
        _statement("MakeTagged", creating, everything, {"StringEquals": {tag: value}}),
        # Creating a part of an existing resource, for example a subnet, needs both statements.
        _statement("ChangeTagged", actions, everything, owned),
    ]


def _roles(settings: Settings) -> list[Statement]:
    """Return statements that let the deployer pass roles to services, and create service roles.

    The service roles are those of API Gateway and ECS.

    Only the stack's roles may be passed. With `permissions_boundary`, also return denials of
    creating or changing a role without this boundary, and of removing the boundary.
    """
    names = settings.names
    role = [f"arn:aws:iam::{names.account}:role{names.iam_path}{names.role('')}*"]
    services = ["ec2.amazonaws.com", "ecs-tasks.amazonaws.com", "lambda.amazonaws.com"]
    if settings.copies:
        services += ["s3.amazonaws.com", "scheduler.amazonaws.com"]
    service_roles = [
        f"arn:aws:iam::*:role/aws-service-role/{service}.amazonaws.com/*"
        for service in ("ecs", "ops.apigateway")
    ]
    found = [
        _statement(
            "GiveRoles",
            ["iam:PassRole"],
            role,
            {"StringEquals": {"iam:PassedToService": services}},
        ),
        _statement("ServiceRoles", ["iam:CreateServiceLinkedRole"], service_roles),
    ]
    if settings.permissions_boundary:
        unbounded = {"StringNotEquals": {"iam:PermissionsBoundary": settings.permissions_boundary}}
        creating = ["iam:CreateRole", "iam:PutRolePermissionsBoundary", "iam:PutRolePolicy"]
        removing = ["iam:DeleteRolePermissionsBoundary"]
        found += [
            _statement("WithinBounds", creating, role, unbounded) | {"Effect": "Deny"},
            _statement("KeepBounds", removing, role) | {"Effect": "Deny"},
        ]
    return found


def _key(settings: Settings, actions: list[str]) -> list[Statement]:
    """Return statements that allow `actions` on `kms_key`, and using the key for stored data.

    The stored data are the rows of the table and the objects of the buckets. The setting `kms_key`
    must be set, which is not checked.
    """
    key = [settings.kms_key]
    return [
        _statement("KeyGrants", actions, key),
        *key_use(settings.names, settings.kms_key),
    ]


def main() -> int:
    """Write the policy of the example team TEAM to POLICY_FILE, and return 0. Raise OSError."""
    POLICY_FILE.write_text(render_policy(EXAMPLE), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
