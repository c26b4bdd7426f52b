"""Sessions of trials' code and logins at ECR, against services that enforce policies."""

import base64
import io
import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError

from control_plane.agents.storage_credentials import StorageCredentials
from control_plane.aws.role_sessions import assume_role
from control_plane.aws.trial_grants import StsTrialGrants, pull_policy
from detcloud.shared.registries import EcrRepository, ecr_repository
from infra.aws import trial_policies
from infra.aws.names import Names
from infra.data_buckets import DataBucket
from tests.emulators.ministack import ACCOUNT, REGION, Ministack
from tests.emulators.policy_reader import allows

NAMES = Names("vision", ACCOUNT, REGION)
READ, WRITTEN = "vision-photos", "vision-scratch"
HOST = f"{ACCOUNT}.dkr.ecr.eu-west-1.amazonaws.com"
IMAGE = f"{HOST}/ml/trial:1"


@pytest.fixture(scope="module")
def s3(strict_aws: Ministack) -> Any:
    """An S3 client with the keys of a trial's code, from the stack's data role."""
    own, iam = strict_aws.client("s3"), strict_aws.client("iam")
    for bucket in (READ, WRITTEN, NAMES.checkpoints):
        own.create_bucket(Bucket=bucket)
        for key in ("ours/1", "theirs/1"):
            own.put_object(Bucket=bucket, Key=key, Body=b"data")
    root = {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}
    allow = {"Effect": "Allow", "Principal": root, "Action": "sts:AssumeRole"}
    trust = json.dumps({"Version": "2012-10-17", "Statement": [allow]})
    role = iam.create_role(RoleName="detcloud-vision-data", AssumeRolePolicyDocument=trust)["Role"]
    buckets = (DataBucket(READ, "ours/", writes=False), DataBucket(WRITTEN, "", writes=True))
    document = json.dumps(trial_policies.data_access(buckets))
    iam.put_role_policy(RoleName=role["RoleName"], PolicyName="data", PolicyDocument=document)
    client = strict_aws.client("sts")
    grants = StsTrialGrants(client, no_registry, data_role=role["Arn"])
    keys = grants.issue_data_keys("trial-2.3", "default")
    return boto3.client(
        "s3",
        endpoint_url=strict_aws.url,
        region_name=REGION,
        aws_access_key_id=keys.key_id,
        aws_secret_access_key=keys.secret,
        aws_session_token=keys.session_token,
    )


def no_registry(region: str, keys: StorageCredentials) -> Any:
    raise AssertionError(f"nobody asks for a login in {region}")


def is_refused(call: Any, **request: Any) -> bool:
    try:
        call(**request)
    except ClientError as error:
        return bool(error.response["ResponseMetadata"]["HTTPStatusCode"] == 403)
    return False


def test_trial_code_may_only_read_the_named_folder(s3: Any) -> None:
    assert not is_refused(s3.get_object, Bucket=READ, Key="ours/1")
    assert not is_refused(s3.list_objects_v2, Bucket=READ, Prefix="ours/")
    assert is_refused(s3.get_object, Bucket=READ, Key="theirs/1")
    assert is_refused(s3.list_objects_v2, Bucket=READ)
    assert is_refused(s3.put_object, Bucket=READ, Key="ours/1", Body=b"new")


def test_trial_code_may_write_a_writable_bucket(s3: Any) -> None:
    assert not is_refused(s3.put_object, Bucket=WRITTEN, Key="theirs/2", Body=b"new")
    assert not is_refused(s3.delete_object, Bucket=WRITTEN, Key="theirs/2")


def test_trial_code_does_not_reach_checkpoints(s3: Any) -> None:
    assert is_refused(s3.get_object, Bucket=NAMES.checkpoints, Key="ours/1")


@dataclass
class Tokens:
    """STS and ECR stubs that record requested sessions and regions."""

    sessions: list[dict[str, Any]] = field(default_factory=list)
    regions: list[str] = field(default_factory=list)

    def assume_role(self, **request: Any) -> dict[str, Any]:
        self.sessions.append(request)
        keys = {"AccessKeyId": "K", "SecretAccessKey": "S", "SessionToken": "T"}
        return {"Credentials": {**keys, "Expiration": datetime.fromtimestamp(2_000_000_000)}}

    def registry(self, region: str, keys: StorageCredentials) -> Any:
        assert (keys.key_id, keys.secret, keys.session_token) == ("K", "S", "T")
        self.regions.append(region)
        return self

    def get_authorization_token(self) -> dict[str, Any]:
        token = base64.b64encode(f"AWS:hush{len(self.regions)}".encode()).decode()
        return {"authorizationData": [{"authorizationToken": token}]}


def test_login_is_fresh_and_limited_to_the_images_repository() -> None:
    tokens = Tokens()
    grants = StsTrialGrants(
        tokens, tokens.registry, pull_role="PULL", repositories=(f"{HOST}/ml/*",)
    )
    passwords = [grants.issue_login("pull-1.1", IMAGE).password for _ in range(2)]
    assert passwords == ["hush1", "hush2"]
    # The registry's region counts, not the cluster's.
    assert tokens.regions == ["eu-west-1"] * 2
    repository = ecr_repository(IMAGE)
    assert repository == EcrRepository(ACCOUNT, "eu-west-1", "ml/trial")
    document = {
        "Statement": [
            {**item, "Resource": [item["Resource"]], "Action": _as_list(item["Action"])}
            for item in pull_policy(repository)["Statement"]
        ]
    }
    own = f"arn:aws:ecr:eu-west-1:{ACCOUNT}:repository/ml/trial"
    assert allows(document, "ecr:BatchGetImage", own)
    assert not allows(document, "ecr:BatchGetImage", f"{own}2")
    assert not allows(document, "ecr:PutImage", own)


def _as_list(actions: str | list[str]) -> list[str]:
    return [actions] if isinstance(actions, str) else actions


@pytest.mark.parametrize(
    ("pattern", "image", "is_given"),
    [
        (f"{HOST}/ml/*", IMAGE, True),
        (f"{HOST}/ml/trial", f"{HOST}/ml/trial@sha256:{'0' * 64}", True),
        (f"{HOST}/ml/trial", f"{HOST}/ml/trials", False),
        (f"{HOST}/*", IMAGE.replace("eu-west-1", "eu-west-2"), False),
        (f"{HOST}/*", f"{HOST}.example.com/ml/trial", False),
        (f"{HOST}/*", "public.ecr.aws/ml/trial", False),
        (f"{HOST}/*", "ml/trial", False),
    ],
)
def test_logins_are_limited_to_the_configured_repositories(
    pattern: str, image: str, is_given: bool
) -> None:
    grants = StsTrialGrants(None, no_registry, pull_role="PULL", repositories=(pattern,))
    assert grants.gives_login(image) is is_given


def test_pool_role_takes_precedence() -> None:
    tokens = Tokens()
    roles = {"gpus": "OWN"}
    grants = StsTrialGrants(tokens, no_registry, data_role="DATA", pool_roles=roles)
    for pool in ("gpus", "other"):
        grants.issue_data_keys("trial-1.1", pool)
    assert [(session["RoleArn"], "Policy" in session) for session in tokens.sessions] == [
        ("OWN", False),
        ("DATA", False),
    ]
    alone = StsTrialGrants(tokens, no_registry, pool_roles=roles)
    assert (alone.gives_data_keys("gpus"), alone.gives_data_keys("other")) == (True, False)


def test_web_page_instead_of_an_answer_is_an_os_error() -> None:
    client = boto3.client(
        "sts", region_name=REGION, aws_access_key_id="a", aws_secret_access_key="s"
    )

    def answer_page(request: Any, **_: object) -> AWSResponse:
        raw = io.BytesIO(b"")
        page = b"<html><p>Service unavailable"
        raw.stream = lambda **_: iter([page])  # type: ignore[attr-defined]
        return AWSResponse(request.url, 200, {}, raw)

    client.meta.events.register("before-send.sts", answer_page)
    with pytest.raises(OSError, match="trial-1: ResponseParserError"):
        assume_role(client, f"arn:aws:iam::{ACCOUNT}:role/r", "trial-1", 900)
