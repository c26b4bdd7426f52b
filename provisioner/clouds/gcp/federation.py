"""Credentials of Google Cloud for a function of AWS, by workload identity federation: the keys of
the function's role sign a GetCallerIdentity request, which Google's token service has AWS check.
There is no key of Google's in it.
"""

import os
from typing import Any

from google.auth import aws

SUBJECT_TOKEN_TYPE = "urn:ietf:params:aws:token-type:aws4_request"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
TOKEN_ENDPOINT = "https://sts.googleapis.com"
IAM_ENDPOINT = "https://iamcredentials.googleapis.com"
# AWS's own address, which Google calls: an emulator's would mean nothing to it.
_IDENTITY_URL = "https://sts.{region}.amazonaws.com?Action=GetCallerIdentity&Version=2011-06-15"


def federated_credentials(provider: str, account: str) -> Any:
    """Return credentials that act as the service account with the e-mail `account`, for the AWS
    role that the environment has keys of. They are fetched at first use, and again before their
    end. `DETCLOUD_STS_ENDPOINT` and `DETCLOUD_IAM_ENDPOINT` name other services than Google's.

    Args:
        provider: `//iam.googleapis.com/projects/NUMBER/locations/global/workloadIdentityPools/
            POOL/providers/PROVIDER`, of type AWS.
    """
    tokens = os.environ.get("DETCLOUD_STS_ENDPOINT") or TOKEN_ENDPOINT
    accounts = os.environ.get("DETCLOUD_IAM_ENDPOINT") or IAM_ENDPOINT
    return aws.Credentials(
        audience=provider,
        subject_token_type=SUBJECT_TOKEN_TYPE,
        token_url=f"{tokens}/v1/token",
        credential_source={
            "environment_id": "aws1",
            "regional_cred_verification_url": _IDENTITY_URL,
        },
        service_account_impersonation_url=(
            f"{accounts}/v1/projects/-/serviceAccounts/{account}:generateAccessToken"
        ),
        scopes=[SCOPE],
    )
