"""The classification of EC2's error codes, the masking of messages, and errors after a launch."""

import pytest

from control_plane.fleet.records import ErrorKind
from provisioner.clouds.aws.errors import (
    CODES,
    MESSAGE_CHARACTERS_MAX,
    cloud_error,
    error_text,
    fleet_error,
    is_caller_refused,
)
from provisioner.clouds.provider import (
    CloudError,
    ConfigurationError,
    NoCapacity,
    NotAllowed,
    OutcomeUnknown,
    QuotaExceeded,
    ThrottlingError,
    TokenReused,
)
from tests.unit.provisioner.ec2_account import Account, request

# From EC2's documentation: code, HTTP status, expected class.
ROWS: list[tuple[str, int, type[CloudError]]] = [
    ("InsufficientInstanceCapacity", 500, NoCapacity),
    ("InsufficientHostCapacity", 500, NoCapacity),
    ("InsufficientFreeAddressesInSubnet", 400, NoCapacity),
    ("UnfulfillableCapacity", 200, NoCapacity),
    ("SpotMaxPriceTooLow", 400, NoCapacity),
    ("VcpuLimitExceeded", 400, QuotaExceeded),
    ("MaxSpotInstanceCountExceeded", 400, QuotaExceeded),
    ("InstanceLimitExceeded", 400, QuotaExceeded),
    ("VolumeLimitExceeded", 400, QuotaExceeded),
    ("UnauthorizedOperation", 403, NotAllowed),
    ("AuthFailure", 401, NotAllowed),
    ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", 403, NotAllowed),
    ("ExpiredToken", 400, NotAllowed),
    ("RequestExpired", 400, NotAllowed),
    ("OptInRequired", 401, NotAllowed),
    ("InvalidAMIID.NotFound", 400, ConfigurationError),
    ("InvalidAMIID.Malformed", 400, ConfigurationError),
    ("InvalidAMIID.Unavailable", 400, ConfigurationError),
    ("InvalidParameterValue", 400, ConfigurationError),
    ("InvalidSubnetID.NotFound", 400, ConfigurationError),
    ("InvalidGroup.NotFound", 400, ConfigurationError),
    ("InvalidKeyPair.NotFound", 400, ConfigurationError),
    ("InvalidLaunchTemplateName.NotFoundException", 400, ConfigurationError),
    ("InvalidFleetConfiguration", 400, ConfigurationError),
    ("Unsupported", 400, ConfigurationError),
    ("IdempotentParameterMismatch", 400, TokenReused),
    ("RequestLimitExceeded", 503, ThrottlingError),
    ("Client.RequestLimitExceeded", 503, ThrottlingError),
    ("Throttling", 400, ThrottlingError),
    ("InternalError", 500, OutcomeUnknown),
    ("Unavailable", 503, OutcomeUnknown),
    ("Server.InternalError", 500, OutcomeUnknown),
    # Unlisted codes: with a server error as the status, EC2 may have executed the request.
    ("SomethingNew", 500, OutcomeUnknown),
    ("SomethingNew", 400, CloudError),
    ("", 400, CloudError),
]


@pytest.mark.parametrize(("code", "status", "cls"), ROWS)
def test_code_takes_precedence_over_status(code: str, status: int, cls: type[CloudError]) -> None:
    assert type(cloud_error(code, "why", status)) is cls


def test_codes_are_single_words() -> None:
    assert len(CODES) > 100
    assert all(code.isalnum() for code in CODES)


KINDS = [
    (["InvalidFleetConfiguration", "InsufficientInstanceCapacity"], ErrorKind.CAPACITY),
    (["VcpuLimitExceeded", "Unsupported"], ErrorKind.QUOTA),
    (["InsufficientInstanceCapacity", "RequestLimitExceeded"], ErrorKind.THROTTLED),
    (["UnauthorizedOperation", "InvalidAMIID.NotFound"], ErrorKind.AUTH),
    (["InvalidAMIID.NotFound", "Nobody.Knows"], ErrorKind.CONFIGURATION),
    (["Nobody.Knows"], ErrorKind.UNKNOWN),
]


@pytest.mark.parametrize(("codes", "kind"), KINDS)
def test_best_error_to_retry_counts(codes: list[str], kind: ErrorKind) -> None:
    for order in (codes, codes[::-1]):
        assert (
            fleet_error([{"ErrorCode": name, "ErrorMessage": "m"} for name in order]).kind is kind
        )


def test_fleet_error_is_never_outcome_unknown() -> None:
    error = fleet_error([{"ErrorCode": "InternalError", "ErrorMessage": "An error occurred"}])
    assert type(error) is CloudError
    assert str(error) == "InternalError: An error occurred"


def test_removes_the_encoded_blob() -> None:
    message = (
        "You are not authorized to perform: ec2:CreateFleet. Encoded authorization failure "
        "message: " + "x9Y_" * 200
    )
    assert error_text("UnauthorizedOperation", message) == (
        "UnauthorizedOperation: You are not authorized to perform: ec2:CreateFleet."
    )


def test_masks_access_keys() -> None:
    text = error_text("AuthFailure", "key AKIAIOSFODNN7EXAMPLE or ASIAIOSFODNN7EXAMPLE is unknown")
    assert text == "AuthFailure: key ******** or ******** is unknown"


def test_shortens_long_messages() -> None:
    text = error_text("InvalidParameterValue", "a" * 10_000)
    assert len(text) == len("InvalidParameterValue: ...") + MESSAGE_CHARACTERS_MAX


@pytest.mark.parametrize(
    ("code", "is_so"),
    [
        ("RequestLimitExceeded", True),
        ("Client.AuthFailure", True),
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", True),
        ("UnauthorizedOperation", True),
        ("OperationNotPermitted", False),
        ("Client.OperationNotPermitted", False),
        ("IncorrectInstanceState", False),
        ("InternalError", False),
    ],
)
def test_recognizes_refusals_of_the_caller(code: str, is_so: bool) -> None:
    assert is_caller_refused(code) is is_so


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "UnauthorizedOperation"])
def test_refused_lookup_of_a_launch_leaves_the_outcome_open(ec2: Account, code: str) -> None:
    cloud = ec2.cloud()
    cloud.launch(request())
    (key,) = [key for key in ec2.region.answers if key[0] == "CreateFleet"]
    fields, answer = ec2.region.answers[key]
    ec2.region.answers[key] = (fields, {"FleetId": answer["FleetId"]})
    ec2.region.fail("DescribeInstances", code)
    with pytest.raises(OutcomeUnknown, match=f"instances cannot be listed: {code}"):
        cloud.launch(request())
