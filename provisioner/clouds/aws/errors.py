"""The classification of EC2's error codes as CloudErrors, and of the reasons for instances' ends.

The code takes precedence over the HTTP status: EC2 responds with 503 when it throttles and with 500
when it has no capacity, and executes nothing in both cases.
"""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from control_plane.fleet.records import ErrorKind
from detcloud.shared.masking import MASK
from provisioner.clouds.aws.refusals import explain_refusal
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
# The codes of quotas that count the vCPUs of an instance family.
VCPU_QUOTA_CODES: Final = ("VcpuLimitExceeded", "MaxSpotInstanceCountExceeded")

# An unlisted code with a point, `Code.Detail`, is classified as `Code`.
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
# Codes that refuse an operation on a resource, for example a protected instance, to any caller.
_SPECIFIC_TO_RESOURCE: Final = frozenset({"OperationNotPermitted"})
# A fleet's errors differ by zone. The error that is most likely to succeed on retry counts.
_BEST_TO_RETRY_FIRST: Final = (
    ThrottlingError,
    NoCapacity,
    QuotaExceeded,
    NotAllowed,
    ConfigurationError,
    CloudError,
)

# The error that an end before the agent's enrolment counts as, by the code of EC2's StateReason.
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
    """Return the CloudError for an EC2 error code, with a text for users; raise nothing.

    The text of a refusal that administrators or settings can lift ends with the remedy.

    The prefixes `Client.` and `Server.` do not matter, and an unlisted code `Code.Detail` counts as
    `Code`. For any other code, the error is an OutcomeUnknown if the HTTP `status` is 500 or above,
    else a plain CloudError. The status does not matter for listed codes.
    """
    code = _without_fault_prefix(code)
    cls = _error_class(code)
    if cls is None:
        cls = OutcomeUnknown if status >= 500 else CloudError
    text = error_text(code, message)
    refusal = explain_refusal(code, message)
    return cls(f"{text} ({refusal.remedy})" if refusal else text)


def is_caller_refused(code: str) -> bool:
    """Whether an error code means that EC2 refuses every request of the caller now.

    This is throttling or missing access. False for OperationNotPermitted, which refuses an
    operation on a single resource, and for unlisted codes.
    """
    code = _without_fault_prefix(code)
    return code not in _SPECIFIC_TO_RESOURCE and _error_class(code) in (ThrottlingError, NotAllowed)


def fleet_error(errors: Iterable[Mapping[str, object]]) -> CloudError:
    """Return the error of a fleet that launched nothing, by the errors of the subnets.

    Choose the error whose class comes first in _BEST_TO_RETRY_FIRST; of equal classes, the first
    error. An OutcomeUnknown becomes a plain CloudError, because the response shows that nothing was
    launched. Raises ValueError without errors.
    """
    cloud_errors = []
    for item in errors:
        code, message = (str(item.get(name, "")) for name in ("ErrorCode", "ErrorMessage"))
        error = cloud_error(code, message)
        cloud_errors.append(CloudError(str(error)) if isinstance(error, OutcomeUnknown) else error)
    return min(cloud_errors, key=_retry_rank)


def error_text(code: str, message: str) -> str:
    """Return an error's text for users: the code and up to MESSAGE_CHARACTERS_MAX of the message.

    Access key ids are masked. The encoded blob that EC2 appends for administrators is removed, and
    white space is joined to single spaces. A shortened message ends with "...". Without a message,
    return the code alone.
    """
    text = " ".join(_ACCESS_KEY.sub(MASK, _BLOB.sub("", message)).split())
    if len(text) > MESSAGE_CHARACTERS_MAX:
        text = text[:MESSAGE_CHARACTERS_MAX] + "..."
    return f"{code}: {text}" if text else code


def end_reason(code: str, message: str) -> EndReason | None:
    """Return why an instance ended, from EC2's StateReason. Return None without a code.

    - `text`: the code with the message, shortened and masked (`error_text`). Advice follows for a
      disk's key and for the quota of disks.
    - `kind`: CAPACITY, QUOTA or CONFIGURATION for the few codes that mean this, and BOOT for any
      other code. The end of a spot instance that EC2 took back is also BOOT.
    - `taken_back`: whether EC2 took back a spot instance.

    An end that the provisioner or the instance itself requested has a reason too, of kind BOOT.
    """
    if not code:
        return None
    # EC2's messages begin with the code.
    text = error_text(code, message.removeprefix(code).removeprefix(":").strip())
    advice = _END_ADVICE.get(code)
    return EndReason(
        f"{text} ({advice})" if advice else text,
        _END_KINDS.get(code, ErrorKind.BOOT),
        code in _TAKEN_BACK,
    )


def _without_fault_prefix(code: str) -> str:
    """Return a code without EC2's prefix `Client.` or `Server.`."""
    return code.removeprefix("Client.").removeprefix("Server.")


def _error_class(code: str) -> type[CloudError] | None:
    """Return the class of a code, or of the part before the first point.

    Return None if neither is listed.
    """
    return CODES.get(code) or CODES.get(code.partition(".")[0])


def _retry_rank(error: CloudError) -> int:
    """Return the position in _BEST_TO_RETRY_FIRST of the first class that fits the error.

    Every CloudError has a position; 0 is the best to retry.
    """
    return next(place for place, cls in enumerate(_BEST_TO_RETRY_FIRST) if isinstance(error, cls))
