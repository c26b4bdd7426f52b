"""The explanations of refused launches."""

import pytest

from provisioner.clouds.aws.errors import cloud_error
from provisioner.clouds.aws.refusals import Denier, explain_refusal
from provisioner.clouds.provider import ConfigurationError, NotAllowed

USER = "User: arn:aws:sts::1:assumed-role/tick/x is not authorized to perform: ec2:RunInstances"


@pytest.mark.parametrize(
    ("code", "message", "denier", "cause"),
    [
        # The forms of IAM's messages: "Troubleshoot access denied error messages".
        (
            "UnauthorizedOperation",
            f"{USER} with an explicit deny in a service control policy",
            Denier.ORGANIZATION,
            "policy of the organization",
        ),
        (
            "UnauthorizedOperation",
            f"{USER} because no service control policy allows the ec2:RunInstances action",
            Denier.ORGANIZATION,
            "policy of the organization",
        ),
        (
            "Client.UnauthorizedOperation",
            f"{USER} with an explicit deny in a resource control policy",
            Denier.ORGANIZATION,
            "policy of the organization",
        ),
        (
            "AccessDenied",
            f"{USER} because no permissions boundary allows the ec2:RunInstances action",
            Denier.CALLER,
            "permissions boundary",
        ),
        (
            "UnauthorizedOperation",
            f"{USER} because no VPC endpoint policy allows the ec2:RunInstances action",
            Denier.CALLER,
            "VPC endpoint",
        ),
        (
            "UnauthorizedOperation",
            f"{USER} with an explicit deny in an identity-based policy",
            Denier.CALLER,
            "denies the launch",
        ),
        ("UnauthorizedOperation", "You are not authorized", Denier.CALLER, "may not launch"),
        ("InvalidAMIID.NotFound", "", Denier.ACCOUNT, "Allowed AMIs"),
        ("TagPolicyViolation", "", Denier.ORGANIZATION, "tag policy"),
        (
            "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
            "",
            Denier.ACCOUNT,
            "AWSServiceRoleForEC2Spot",
        ),
        ("Client.InvalidKMSKey.InvalidState", "", Denier.ACCOUNT, "key that encrypts"),
        ("InvalidSubnetID.NotFound", "", Denier.ACCOUNT, "subnet"),
        ("InvalidCapacityReservationId.NotFound", "", Denier.ACCOUNT, "reservation"),
    ],
)
def test_refusal_names_the_denying_rule(
    code: str, message: str, denier: Denier, cause: str
) -> None:
    refusal = explain_refusal(code, message)
    assert refusal is not None
    assert refusal.denier is denier
    assert cause in refusal.cause
    assert refusal.remedy


@pytest.mark.parametrize("code", ["InsufficientInstanceCapacity", "VcpuLimitExceeded", "Surprise"])
def test_other_codes_have_no_explanation(code: str) -> None:
    assert explain_refusal(code, "service control policy") is None


def test_error_of_a_launch_ends_with_the_remedy() -> None:
    denied = cloud_error("UnauthorizedOperation", "explicit deny in a service control policy")
    assert isinstance(denied, NotAllowed)
    assert "ask the administrator of the organization's policies" in str(denied)
    wrong = cloud_error("TagPolicyViolation", "tag 'stage'")
    assert isinstance(wrong, ConfigurationError)
    assert str(wrong).startswith("TagPolicyViolation: tag 'stage' (set the required tags")
