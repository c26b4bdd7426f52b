"""What EC2's error codes mean for another try: the one place where they are told apart.

The code decides before the HTTP status does: EC2 answers 503 when it throttles and 500 when it has
no capacity, and of both nothing was done.
"""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from provisioner.clouds.provider import (
    CloudError,
    Misconfigured,
    NoCapacity,
    NotAllowed,
    OutcomeUnknown,
    QuotaExceeded,
    Throttled,
    TokenReused,
)

MESSAGE_CHARACTERS_MAX = 400

# A code with a point that is not listed counts as what comes before the point.
_CLASSES: Final[tuple[tuple[type[CloudError], str], ...]] = (
    (
        NoCapacity,
        "InsufficientCapacity InsufficientInstanceCapacity InsufficientHostCapacity "
        "InsufficientReservedInstanceCapacity InsufficientCapacityOnHost UnfulfillableCapacity "
        "ReservationCapacityExceeded InsufficientFreeAddressesInSubnet InsufficientAddressCapacity "
        "InsufficientVolumeCapacity SpotMaxPriceTooLow",
    ),
    (
        QuotaExceeded,
        "VcpuLimitExceeded InstanceLimitExceeded MaxSpotInstanceCountExceeded "
        "SpotInstanceLimitExceeded MaxSpotFleetRequestCountExceeded MaxFleetCountExceeded "
        "VolumeLimitExceeded MaxIOPSLimitExceeded MaxIOPSLimit AddressLimitExceeded "
        "NetworkInterfaceLimitExceeded LaunchTemplateLimitExceeded ResourceLimitExceeded "
        "LimitExceeded",
    ),
    (
        NotAllowed,
        "UnauthorizedOperation AuthFailure AccessDenied AccessDeniedException ExpiredToken "
        "ExpiredTokenException RequestExpired InvalidClientTokenId UnrecognizedClientException "
        "SignatureDoesNotMatch InvalidSignatureException IncompleteSignature "
        "MissingAuthenticationToken OptInRequired PendingVerification Blocked "
        "OperationNotPermitted",
    ),
    (
        Misconfigured,
        "InvalidAMIID InvalidAction InvalidAvailabilityZone InvalidBlockDeviceMapping "
        "InvalidFleetConfig InvalidFleetConfiguration InvalidGroup InvalidGroupId "
        "InvalidIamInstanceProfile InvalidIamInstanceProfileArn InvalidID InvalidInput "
        "InvalidInstanceType InvalidInterface InvalidKeyPair InvalidLaunchTemplate "
        "InvalidLaunchTemplateId InvalidLaunchTemplateName InvalidNetworkInterface "
        "InvalidParameter InvalidParameterCombination InvalidParameterValue "
        "InvalidSecurityGroupID InvalidSnapshot InvalidSpotFleetRequestConfig InvalidSubnet "
        "InvalidSubnetID InvalidTagKey InvalidUserData InvalidVolume InvalidVpcID InvalidZone "
        "MalformedQueryString MissingInput MissingParameter ParameterNotFound "
        "SecurityGroupsPerInstanceLimitExceeded TagLimitExceeded TagPolicyViolation "
        "UnknownParameter Unsupported UnsupportedOperation UnsupportedHibernationConfiguration "
        "ValidationError VPCIdNotSpecified VPCResourceNotSpecified",
    ),
    (TokenReused, "IdempotentParameterMismatch"),
    (
        Throttled,
        "RequestLimitExceeded Throttling ThrottlingException ThrottledException RequestThrottled "
        "RequestThrottledException EC2ThrottledException TooManyRequestsException SlowDown "
        "BandwidthLimitExceeded",
    ),
    (
        OutcomeUnknown,
        "InternalError InternalFailure InternalServerError ServerInternal ServiceUnavailable "
        "Unavailable RequestTimeout RequestTimeoutException IdempotencyInProgress",
    ),
)
CODES: Final[Mapping[str, type[CloudError]]] = MappingProxyType(
    {code: cls for cls, codes in _CLASSES for code in codes.split()}
)
# Not allowed with this one thing, such as a protected instance, whoever asks.
_OF_ONE_THING: Final = frozenset({"OperationNotPermitted"})
# Of several answers the one that leaves the most hope counts: zones differ.
_HOPE: Final = (Throttled, NoCapacity, QuotaExceeded, NotAllowed, Misconfigured, CloudError)

_BLOB: Final = re.compile(r"\s*Encoded authorization failure message:.*", re.DOTALL)
_ACCESS_KEY: Final = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b")


def classified(code: str, message: str, status: int = 400) -> CloudError:
    """What a refused call means."""
    code = _bare(code)
    cls = _class(code)
    if cls is None:
        cls = OutcomeUnknown if status >= 500 else CloudError
    return cls(told(code, message))


def is_of_the_caller(code: str) -> bool:
    """Whether whoever asks is refused for now, whatever it is that they ask for."""
    code = _bare(code)
    return code not in _OF_ONE_THING and _class(code) in (Throttled, NotAllowed)


def narrowest(errors: Iterable[Mapping[str, object]]) -> CloudError:
    """What the errors of a fleet mean that launched nothing, of which there must be one. An
    answer came, so the outcome is known whatever they say.
    """
    found = []
    for error in errors:
        code, message = (str(error.get(name, "")) for name in ("ErrorCode", "ErrorMessage"))
        one = classified(code, message)
        found.append(CloudError(str(one)) if isinstance(one, OutcomeUnknown) else one)
    return min(found, key=_hopelessness)


def told(code: str, message: str) -> str:
    """An error for people: without the encoded blob that EC2 appends for administrators, and
    without what could be a credential.
    """
    text = " ".join(_ACCESS_KEY.sub("********", _BLOB.sub("", message)).split())
    if len(text) > MESSAGE_CHARACTERS_MAX:
        text = text[:MESSAGE_CHARACTERS_MAX] + "..."
    return f"{code}: {text}" if text else code


def _bare(code: str) -> str:
    return code.removeprefix("Client.").removeprefix("Server.")


def _class(code: str) -> type[CloudError] | None:
    return CODES.get(code) or CODES.get(code.partition(".")[0])


def _hopelessness(error: CloudError) -> int:
    return next(place for place, cls in enumerate(_HOPE) if isinstance(error, cls))
