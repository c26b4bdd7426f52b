"""The meaning of EC2's error codes for another try: the one place that classifies them.

The code decides before the HTTP status does: EC2 answers 503 when it throttles and 500 when it has
no capacity, and in both cases nothing was done.
"""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from control_plane.fleet.records import ErrorKind
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
from provisioner.model import EndReason

MESSAGE_CHARACTERS_MAX = 400
# Of the quotas those that count the vCPUs of a family.
VCPU_QUOTA_CODES: Final = ("VcpuLimitExceeded", "MaxSpotInstanceCountExceeded")

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
        ConfigurationError,
        "InvalidAMIID InvalidAction InvalidAvailabilityZone InvalidBlockDeviceMapping "
        "InvalidCapacityReservationId InvalidFleetConfig InvalidFleetConfiguration InvalidGroup "
        "InvalidGroupId InvalidIamInstanceProfile InvalidIamInstanceProfileArn InvalidID "
        "InvalidInput InvalidInstanceType InvalidInterface InvalidKeyPair InvalidLaunchTemplate "
        "InvalidLaunchTemplateId InvalidLaunchTemplateName InvalidNetworkInterface "
        "InvalidParameter InvalidPlacementGroup InvalidParameterCombination InvalidParameterValue "
        "InvalidSecurityGroupID InvalidSnapshot InvalidSpotFleetRequestConfig InvalidSubnet "
        "InvalidSubnetID InvalidTagKey InvalidUserData InvalidVolume InvalidVpcID InvalidZone "
        "MalformedQueryString MissingInput MissingParameter ParameterNotFound "
        "SecurityGroupsPerInstanceLimitExceeded TagLimitExceeded TagPolicyViolation "
        "UnknownParameter Unsupported UnsupportedOperation UnsupportedHibernationConfiguration "
        "ValidationError VPCIdNotSpecified VPCResourceNotSpecified",
    ),
    (TokenReused, "IdempotentParameterMismatch"),
    (
        ThrottlingError,
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
# Not allowed for anybody with one resource, such as a protected instance.
_SPECIFIC_TO_RESOURCE: Final = frozenset({"OperationNotPermitted"})
# Of several errors the one that leaves the most hope counts: zones differ.
_BEST_TO_RETRY_FIRST: Final = (
    ThrottlingError,
    NoCapacity,
    QuotaExceeded,
    NotAllowed,
    ConfigurationError,
    CloudError,
)

# Why an instance ended, by the code of EC2's StateReason, where that was no failure of its boot.
_END_KINDS: Final = MappingProxyType(
    {
        "Server.InsufficientInstanceCapacity": ErrorKind.CAPACITY,
        "Client.VolumeLimitExceeded": ErrorKind.QUOTA,
        "Client.InvalidSnapshot.NotFound": ErrorKind.CONFIGURATION,
        "Client.InternalError": ErrorKind.CONFIGURATION,
    }
)
_TAKEN_BACK: Final = frozenset({"Server.SpotInstanceTermination", "Server.SpotInstanceShutdown"})
_END_ADVICE: Final = MappingProxyType(
    {
        "Client.InternalError": "often a key of KMS for its disk that EC2 may not use",
        "Client.VolumeLimitExceeded": "raise EBS's quota of gp3 storage in Service Quotas",
    }
)

_BLOB: Final = re.compile(r"\s*Encoded authorization failure message:.*", re.DOTALL)
_ACCESS_KEY: Final = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b")


def cloud_error(code: str, message: str, status: int = 400) -> CloudError:
    """The CloudError that a refused call means."""
    code = _without_fault_prefix(code)
    cls = _error_class(code)
    if cls is None:
        cls = OutcomeUnknown if status >= 500 else CloudError
    return cls(error_text(code, message))


def is_caller_refused(code: str) -> bool:
    """Whether the cloud currently refuses every request of the caller, such as by throttling."""
    code = _without_fault_prefix(code)
    return code not in _SPECIFIC_TO_RESOURCE and _error_class(code) in (ThrottlingError, NotAllowed)


def fleet_error(errors: Iterable[Mapping[str, object]]) -> CloudError:
    """The most hopeful of the errors of a fleet that launched nothing; there must be one. An answer
    came, so the outcome is known whatever they say.
    """
    found = []
    for error in errors:
        code, message = (str(error.get(name, "")) for name in ("ErrorCode", "ErrorMessage"))
        one = cloud_error(code, message)
        found.append(CloudError(str(one)) if isinstance(one, OutcomeUnknown) else one)
    return min(found, key=_retry_rank)


def error_text(code: str, message: str) -> str:
    """An error in words for users: without the encoded blob that EC2 appends for administrators,
    and without what could be a credential.
    """
    text = " ".join(_ACCESS_KEY.sub("********", _BLOB.sub("", message)).split())
    if len(text) > MESSAGE_CHARACTERS_MAX:
        text = text[:MESSAGE_CHARACTERS_MAX] + "..."
    return f"{code}: {text}" if text else code


def end_reason(code: str, message: str) -> EndReason | None:
    """Why an instance ended, by its StateReason; None where EC2 says nothing."""
    if not code:
        return None
    # Messages begin with their code.
    text = error_text(code, message.removeprefix(code).removeprefix(":").strip())
    advice = _END_ADVICE.get(code)
    return EndReason(
        f"{text} ({advice})" if advice else text,
        _END_KINDS.get(code, ErrorKind.BOOT),
        code in _TAKEN_BACK,
    )


def _without_fault_prefix(code: str) -> str:
    return code.removeprefix("Client.").removeprefix("Server.")


def _error_class(code: str) -> type[CloudError] | None:
    return CODES.get(code) or CODES.get(code.partition(".")[0])


def _retry_rank(error: CloudError) -> int:
    return next(place for place, cls in enumerate(_BEST_TO_RETRY_FIRST) if isinstance(error, cls))
