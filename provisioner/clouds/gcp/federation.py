"""Google Cloud credentials for a cluster that runs in AWS, by workload identity federation.

The AWS role's keys sign a GetCallerIdentity request, and Google's token service verifies the
request with AWS. The cluster stores no Google key.
"""

import os
from typing import Any

from google.auth import aws

SUBJECT_TOKEN_TYPE = "urn:ietf:params:aws:token-type:aws4_request"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
TOKEN_ENDPOINT = "https://sts.googleapis.com"
IAM_ENDPOINT = "https://iamcredentials.googleapis.com"
# Google calls this address, which is AWS's own even if an emulator is in use.
_IDENTITY_URL = "https://sts.{region}.amazonaws.com?Action=GetCallerIdentity&Version=2011-06-15"


def federated_credentials(provider: str, account: str) -> Any:
    """Return credentials of a Google service account for the AWS role in the environment.

    The role's keys and region must be in the variables AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
    AWS_SESSION_TOKEN and AWS_REGION or AWS_DEFAULT_REGION, as in a Lambda function. The keys of an
    instance's or a container's role are not used. No request is made yet: the credentials are
    requested at first use and again before they expire. Without the variables, the first use fails
    with a GoogleAuthError. `DETCLOUD_STS_ENDPOINT` and `DETCLOUD_IAM_ENDPOINT` replace Google's
    services.

    Args:
        provider: `//iam.googleapis.com/projects/NUMBER/locations/global/workloadIdentityPools/
            POOL/providers/PROVIDER`, of type AWS.
        account: the e-mail address of the service account.
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
