"""The causes of EC2's refusals to launch, and the remedies. Pure.

The check before a deployment and the provisioner explain refusals with the same table. Sources: IAM
user guide, "Troubleshoot access denied error messages" (the message names the type of the denying
policy); EC2 API reference, "Error codes for the Amazon EC2 API"; EC2 user guide, "Control the
discovery and use of AMIs in Amazon EC2 with Allowed AMIs" and "Service-linked role for Spot
Instance requests"; Organizations user guide, "Enforce tagging consistency".
"""

import re
from enum import StrEnum
from typing import Final, NamedTuple


class Denier(StrEnum):
    """The owner of the rule that refused a launch."""

    ORGANIZATION = "organization"
    """A policy of the organization, which applies to all roles of the account."""
    CALLER = "caller"
    """A policy of the caller alone. Another role may be allowed."""
    ACCOUNT = "account"
    """A setting or a state of the account, which applies to all roles."""


class Refusal(NamedTuple):
    """The explanation of a refused launch."""

    denier: Denier
    cause: str
    """What refuses, without the code."""
    remedy: str
    """What the user or an administrator can do."""


class _Rule(NamedTuple):
    """A row of the table: the codes and messages of a refusal, and the explanation."""

    code: str
    """A regular expression for the whole code."""
    message: str
    """A regular expression that occurs in the message; "" for any message."""
    refusal: Refusal


_DENIED: Final = "UnauthorizedOperation|AccessDenied(Exception)?"
_ORGANIZATION: Final = "ask the administrator of the organization's policies for an exception"
# The first row that fits counts. EC2's prefixes `Client.` and `Server.` are removed from codes.
_RULES: Final = tuple(
    _Rule(code, message, Refusal(denier, cause, remedy))
    for code, message, denier, cause, remedy in (
        (
            _DENIED,
            r"(service|resource) control policy",
            Denier.ORGANIZATION,
            "a policy of the organization denies launches in this account and region",
            f"{_ORGANIZATION}, or change the forbidden part: public addresses with "
            "provider.network_interface.public_ip, tags with detcloud:tags, the region, the type "
            "or the image",
        ),
        (
            f"{_DENIED}|OperationNotPermitted|DeclarativePolicy.*",
            r"declarative polic",
            Denier.ORGANIZATION,
            "a declarative policy of the organization forbids a part of the launch",
            _ORGANIZATION,
        ),
        (
            _DENIED,
            r"permissions boundary",
            Denier.CALLER,
            "the permissions boundary of the caller's role does not allow the launch",
            "allow ec2:CreateFleet and ec2:RunInstances in the policy of the boundary",
        ),
        (
            _DENIED,
            r"VPC endpoint polic",
            Denier.CALLER,
            "the policy of the VPC endpoint that the caller uses does not allow the launch",
            "allow ec2:CreateFleet and ec2:RunInstances in the policy of the endpoint",
        ),
        (
            _DENIED,
            r"explicit deny in an identity-based policy",
            Denier.CALLER,
            "a policy of the caller's user or role denies the launch",
            "remove the denial from the policy, or use another role",
        ),
        (
            _DENIED,
            "",
            Denier.CALLER,
            "the caller may not launch instances",
            "allow ec2:CreateFleet and ec2:RunInstances to the caller",
        ),
        (
            r"InvalidAMIID\..*",
            "",
            Denier.ACCOUNT,
            "the image does not exist, is not shared with the account, or is hidden by the "
            "account's Allowed AMIs",
            "name another image in provider.image_id, or add the image's owner to the Allowed AMIs "
            "of the account or of the organization's declarative policy",
        ),
        (
            "TagPolicyViolation",
            "",
            Denier.ORGANIZATION,
            "a tag policy of the organization refuses the tags of the instance",
            "set the required tags in detcloud:tags, or in provider.custom_tags of the pool",
        ),
        (
            r"AuthFailure\.ServiceLinkedRoleCreationNotPermitted",
            "",
            Denier.ACCOUNT,
            "the service role AWSServiceRoleForEC2Spot is missing, and the caller may not create "
            "the role",
            "aws iam create-service-linked-role --aws-service-name spot.amazonaws.com",
        ),
        (
            r"InvalidKMSKey\..*|KMS.*|.*KeyNotAccessible.*",
            "",
            Denier.ACCOUNT,
            "EC2 may not use the key that encrypts the disk",
            "name the key in detcloud:kmsKey, enable the key, and let the tick's role and EC2's "
            "spot market use the key",
        ),
        (
            "OptInRequired",
            "",
            Denier.ACCOUNT,
            "the account has not accepted the terms of the image or enabled the region",
            "accept the terms of the image in AWS Marketplace, or enable the region",
        ),
        (
            "PendingVerification",
            "",
            Denier.ACCOUNT,
            "AWS still verifies the account",
            "wait for AWS's e-mail, usually a few minutes, at most four hours",
        ),
        (
            "Blocked",
            "",
            Denier.ACCOUNT,
            "AWS has blocked the account",
            "contact AWS Support",
        ),
        (
            "Unsupported|UnsupportedOperation",
            "",
            Denier.ACCOUNT,
            "the zone does not offer the type with this configuration",
            "name another zone or type in the offerings of the pool",
        ),
        (
            r"InvalidSubnetID\..*|InvalidSubnet\..*",
            "",
            Denier.ACCOUNT,
            "the subnet does not exist or is not shared with the account",
            "name another subnet in detcloud:network",
        ),
        (
            r"InvalidGroup\..*|InvalidGroupId\..*|InvalidSecurityGroupID\..*",
            "",
            Denier.ACCOUNT,
            "the security group does not exist, or belongs to another network than the subnet",
            "name a security group of the subnet's network in detcloud:network",
        ),
        (
            r"InvalidKeyPair\..*",
            "",
            Denier.ACCOUNT,
            "the key pair does not exist",
            "name an existing key pair of this region in provider.ssh_key_name, or none",
        ),
        (
            r"InvalidCapacityReservationId\..*",
            "",
            Denier.ACCOUNT,
            "the capacity reservation does not exist or is not shared with the account",
            "name another reservation in provider.capacity_reservation",
        ),
    )
)


def explain_refusal(code: str, message: str) -> Refusal | None:
    """Return the explanation of EC2's refusal to launch.

    Return None if the table has no row for the code and the message.
    """
    plain = code.removeprefix("Client.").removeprefix("Server.")
    for rule in _RULES:
        if re.fullmatch(rule.code, plain) and re.search(rule.message, message, re.IGNORECASE):
            return rule.refusal
    return None
