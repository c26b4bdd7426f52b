"""Credentials of allocations, against a store that enforces policies."""

import json
import time
from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from control_plane.agents.storage_credentials import SECONDS_MAX, StorageAccess
from control_plane.aws.storage_credentials import StsCredentialIssuer
from infra.aws import policies
from infra.aws.names import Names
from tests.emulators.ministack import ACCOUNT, REGION, Ministack

NAMES = Names("vision", ACCOUNT, REGION)
BUCKET = NAMES.checkpoints
OWN = StorageAccess(BUCKET, ("1/2/3", "tensorboard/1/2"), ("1/2", "7/9/1/uuid"))
OTHERS = "1/3/1/uuid/state.pth"


@pytest.fixture(scope="module")
def issuer(strict_aws: Ministack) -> StsCredentialIssuer:
    """An issuer with the storage role of the stack."""
    strict_aws.client("s3").create_bucket(Bucket=BUCKET)
    for key in ("1/2/1/uuid/state.pth", "7/9/1/uuid/state.pth", OTHERS):
        strict_aws.client("s3").put_object(Bucket=BUCKET, Key=key, Body=b"weights")
    iam = strict_aws.client("iam")
    root = {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}
    allows = {"Effect": "Allow", "Principal": root, "Action": "sts:AssumeRole"}
    trust = json.dumps({"Version": "2012-10-17", "Statement": [allows]})
    name = NAMES.part("storage")
    role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    document = json.dumps(policies.storage(NAMES))
    iam.put_role_policy(RoleName=name, PolicyName=name, PolicyDocument=document)
    return StsCredentialIssuer(strict_aws.client("sts"), role)


@pytest.fixture(scope="module")
def s3(strict_aws: Ministack, issuer: StsCredentialIssuer) -> Any:
    """An S3 client with the credentials of an allocation."""
    credentials = issuer.issue_credentials("trial-2.3", OWN)
    return boto3.client(
        "s3",
        endpoint_url=strict_aws.url,
        region_name=REGION,
        aws_access_key_id=credentials.key_id,
        aws_secret_access_key=credentials.secret,
        aws_session_token=credentials.session_token,
    )


def is_refused(call: Callable[..., Any], **request: Any) -> bool:
    try:
        call(Bucket=BUCKET, **request)
    except ClientError as error:
        status: int = error.response["ResponseMetadata"]["HTTPStatusCode"]
        return status == 403
    return False


def test_run_writes_only_below_the_epoch(s3: Any) -> None:
    assert not is_refused(s3.put_object, Key="1/2/3/uuid/state.pth", Body=b"new")
    for key in ("1/2/1/uuid/state.pth", OTHERS, "state.pth", "1/2/33/uuid/state.pth"):
        assert is_refused(s3.put_object, Key=key, Body=b"new"), key


def test_run_reads_the_trial_and_the_first_checkpoint(s3: Any) -> None:
    for key in ("1/2/1/uuid/state.pth", "7/9/1/uuid/state.pth"):
        assert not is_refused(s3.get_object, Key=key), key
    assert is_refused(s3.get_object, Key=OTHERS)


def test_run_lists_only_the_trials_checkpoints(s3: Any) -> None:
    assert not is_refused(s3.list_objects_v2, Prefix="1/2/1/")
    for prefix in ("", "1/", "1/3/", "1/22/"):
        assert is_refused(s3.list_objects_v2, Prefix=prefix), prefix


def test_run_may_not_delete_objects(s3: Any) -> None:
    assert is_refused(s3.delete_object, Key="1/2/1/uuid/state.pth")
    assert is_refused(s3.delete_object, Key=OTHERS)


def test_keys_expire_within_an_hour(issuer: StsCredentialIssuer, strict_aws: Ministack) -> None:
    credentials = issuer.issue_credentials("trial-2.3", OWN)
    assert credentials.expires_ms / 1000 - time.time() <= SECONDS_MAX + 5
    assert credentials.secret not in repr(credentials)
