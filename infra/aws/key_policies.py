"""IAM permissions to use a customer-managed key for the stack's data. Pure.

DynamoDB and S3 use a customer-managed key with the caller's permissions. EC2 uses the key with the
permissions of the function that launches instances. EC2's spot market needs a grant, and CloudWatch
needs a statement in the key's own policy.
"""

from infra.aws.names import Names
from infra.aws.policy_statements import Statement, make_statement

KEY_ACTIONS = (
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:Encrypt",
    "kms:GenerateDataKey",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
)
DISK_KEY_ACTIONS = (
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
)
SPOT_GRANT = (
    "CreateGrant",
    "Decrypt",
    "DescribeKey",
    "Encrypt",
    "GenerateDataKey",
    "GenerateDataKeyWithoutPlaintext",
    "ReEncryptFrom",
    "ReEncryptTo",
)
LOG_KEY_ACTIONS = (
    "kms:Decrypt*",
    "kms:Describe*",
    "kms:Encrypt*",
    "kms:GenerateDataKey*",
    "kms:ReEncrypt*",
)


def key_use(names: Names, key: str) -> list[Statement]:
    """Return a list of the statement that lets a role use rows and objects encrypted with the key.

    `key` is the ARN of a customer-managed key, which DynamoDB and S3 use with their caller's
    permissions.
    """
    through = [f"{service}.{names.region}.amazonaws.com" for service in ("dynamodb", "s3")]
    condition = {"StringEquals": {"kms:ViaService": through}}
    return [make_statement("Key", KEY_ACTIONS, [key], condition)]


def disk_encryption(names: Names, key: str) -> list[Statement]:
    """Return the statements that let a function encrypt the disks of launched instances.

    `key` is the ARN of a customer-managed key.
    """
    through = {"kms:ViaService": f"ec2.{names.region}.amazonaws.com"}
    resource = {"Bool": {"kms:GrantIsForAWSResource": "true"}}
    return [
        make_statement("DiskKey", DISK_KEY_ACTIONS, [key], {"StringEquals": through}),
        make_statement("DiskKeyGrants", ["kms:CreateGrant"], [key], resource),
    ]


def log_key(names: Names) -> Statement:
    """Return the statement that a key's own policy needs before CloudWatch can encrypt logs.

    KMS grants cannot be made for CloudWatch, so only the key's policy can allow the use.
    """
    groups = f"arn:aws:logs:{names.region}:{names.account}:log-group:*{names.cluster}-*"
    context = {"ArnLike": {"kms:EncryptionContext:aws:logs:arn": groups}}
    service = {"Service": f"logs.{names.region}.amazonaws.com"}
    return make_statement("DetcloudLogs", LOG_KEY_ACTIONS, ["*"], context, Principal=service)
