"""CloudFront with a company's web ACL in front of the API, and Systems Manager sessions."""

import hashlib
import json
from pathlib import Path

import pytest

from infra.aws import policies
from infra.aws.front import ORIGIN_HEADER
from infra.aws.names import FUNCTIONS, Names
from infra.aws.policy_statements import add_statements
from infra.aws.program import run
from infra.aws.settings import parse_settings
from infra.aws.terraform import PROVIDER
from infra.stack_program import SettingsInvalid
from infra.terraform.export import export
from tests.emulators.policy_reader import allows
from tests.unit.infra.graphs import FRONTED, Graph, files

SECRET = "s" * 32


def test_api_is_called_only_through_the_distribution(front_stack: Graph) -> None:
    front = front_stack.inputs_of("Distribution")["front"]
    assert front["webAclId"] == FRONTED["detcloud:webAcl"]
    [origin] = front["origins"]
    assert origin["domainName"] == "Api.api.id.execute-api.eu-west-1.amazonaws.com"
    assert origin["customOriginConfig"]["originProtocolPolicy"] == "https-only"
    assert origin["customHeaders"] == [{"name": ORIGIN_HEADER, "value": SECRET}]
    behaviour = front["defaultCacheBehavior"]
    assert behaviour["viewerProtocolPolicy"] == "https-only"
    assert {"POST", "PUT", "DELETE", "PATCH"} < set(behaviour["allowedMethods"])
    url = "https://Distribution.front.domainName"
    assert front_stack.exported["url"] == url
    functions = front_stack.inputs_of("Function")
    for name in FUNCTIONS:
        variables = functions[name]["environment"]["variables"]
        assert variables["DETCLOUD_API_URL"] == url
        # Running instances know the former address; the gateway serves both addresses.
        assert variables["DETCLOUD_API_FORMER_URL"] == "Api.api.apiEndpoint"
        # The functions check the digest and need no secret.
        assert SECRET not in variables.values()
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    assert functions["api"]["environment"]["variables"]["DETCLOUD_ORIGIN_SHA256"] == digest
    assert functions["api"]["reservedConcurrentExecutions"] == 50


def test_distribution_caches_no_errors(front_stack: Graph) -> None:
    # By default CloudFront caches these errors of GET for 10 s, by path without query and token.
    # Each code needs a setting, and no further codes can be set.
    front = front_stack.inputs_of("Distribution")["front"]
    kept = {
        custom_error_response["errorCode"]: custom_error_response["errorCachingMinTtl"]
        for custom_error_response in front["customErrorResponses"]
    }
    assert kept == dict.fromkeys((400, 403, 404, 405, 414, 416, 500, 501, 502, 503, 504), 0)
    assert not [
        custom_error_response
        for custom_error_response in front["customErrorResponses"]
        if "responseCode" in custom_error_response
    ]


def test_stack_without_web_acl_has_no_distribution(vision: Graph) -> None:
    assert not vision.inputs_of("Distribution")
    assert not vision.inputs_of("RolePolicyAttachment")


def test_terraform_export_has_the_distribution(tmp_path: Path) -> None:
    document = export(
        run, PROVIDER, "fronted", {**FRONTED, **files(tmp_path / "given")}, tmp_path / "out"
    )
    front = document["resource"]["aws_cloudfront_distribution"]["front"]
    assert front["origin"][0]["domain_name"] == (
        "${aws_apigatewayv2_api.api.id}.execute-api.eu-west-1.amazonaws.com"
    )
    assert front["web_acl_id"] == FRONTED["detcloud:webAcl"]
    assert {"error_code": 404, "error_caching_min_ttl": 0} in front["custom_error_response"]
    assert document["output"]["url"]["value"] == (
        "https://${aws_cloudfront_distribution.front.domain_name}"
    )
    alias = document["resource"]["aws_lambda_alias"]["api"]
    assert alias["function_version"] == "${aws_lambda_function.api.version}"


def test_instances_may_open_sessions_but_read_no_parameters(front_stack: Graph) -> None:
    document = json.loads(front_stack.inputs_of("RolePolicy")["instance"]["policy"])
    [sessions] = [item for item in document["Statement"] if item["Sid"] == "Sessions"]
    # Systems Manager user guide, "Verify or add instance permissions for Session Manager".
    assert set(sessions["Action"]) == {
        "ssm:UpdateInstanceInformation",
        "ssmmessages:CreateControlChannel",
        "ssmmessages:CreateDataChannel",
        "ssmmessages:OpenControlChannel",
        "ssmmessages:OpenDataChannel",
    }
    parameter = "arn:aws:ssm:eu-west-1:111111111111:parameter/secret"
    for action in ("GetParameter", "GetParameters", "GetDocument", "PutInventory"):
        assert not allows(document, f"ssm:{action}", parameter)


def test_session_manager_is_known_to_the_tick(front_stack: Graph) -> None:
    variables = front_stack.inputs_of("Function")["tick"]["environment"]["variables"]
    assert json.loads(variables["DETCLOUD_NETWORK"])["session_manager"] is True


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"webAcl": "arn:aws:wafv2:eu-west-1:111111111111:regional/webacl/a/1"}, "for CloudFront"),
        (
            {"webAcl": "arn:aws:wafv2:us-east-1:222222222222:global/webacl/a/1"},
            "expected one of account 111111111111 and region us-east-1",
        ),
        ({"originSecret": SECRET}, "webAcl is missing"),
        ({"originSecret": "short-and-told"}, "32 to 128 letters"),
        (
            {
                "webAcl": FRONTED["detcloud:webAcl"],
                "domain": "ml.example.com",
                "certificate": "arn:aws:acm:eu-west-1:111111111111:certificate/1",
            },
            "exclude each other",
        ),
        ({"sessionManager": "yes"}, "true or false"),
    ],
)
def test_refuses_wrong_settings_of_front_and_sessions(
    settings: dict[str, str], expected: str
) -> None:
    least = {
        "account": "111111111111",
        "region": "eu-west-1",
        "clusterConfig": "pools.yaml",
        "adminSha256": "a" * 64,
    }
    with pytest.raises(SettingsInvalid, match=expected) as refused:
        parse_settings("vision", {**least, **settings})
    assert "short-and-told" not in str(refused.value)


def test_instances_may_write_only_to_the_pools_log_groups() -> None:
    names = Names("vision", "111111111111", "us-east-1")
    journal = policies.journal(names, ["/company/agents"])
    document = add_statements(policies.instance(names), [journal])
    own = "arn:aws:logs:us-east-1:111111111111:log-group:/company/agents:log-stream:i-1"
    other = "arn:aws:logs:us-east-1:111111111111:log-group:/aws/lambda/x:log-stream:i-1"
    assert allows(document, "logs:PutLogEvents", own)
    assert not allows(document, "logs:PutLogEvents", other)
    assert not allows(document, "logs:DeleteLogGroup", own)
