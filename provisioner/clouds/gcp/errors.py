"""The meaning of Compute Engine's error codes for another try: the one place that classifies them.

A refused call has reasons such as `quotaExceeded`; an operation that failed after the call was
accepted has codes such as QUOTA_EXCEEDED. The code decides before the HTTP status does: 403 is a
missing permission, a used-up quota or a throttled caller, and 503 with `insufficientCapacity` is
an answer.

Sources: Compute Engine's "Troubleshooting bulk VM creation", "Troubleshooting VM creation" and
"Resource availability errors"; codes that others have met are in Kubernetes' cluster autoscaler.
"""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from provisioner.clouds.provider import (
    CloudError,
    ConfigurationError,
    NoCapacity,
    NotAllowed,
    OutcomeUnknown,
    QuotaExceeded,
    ThrottlingError,
)

MESSAGE_CHARACTERS_MAX = 400

_CLASSES: Final[tuple[tuple[type[CloudError], str], ...]] = (
    (
        # UNSUPPORTED_OPERATION is that of a machine taken back while it was made.
        NoCapacity,
        "insufficientCapacity resourcePoolExhausted requestExceedsCapacity "
        "ZONE_RESOURCE_POOL_EXHAUSTED ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS "
        "REGION_RESOURCE_POOL_EXHAUSTED RESOURCE_POOL_EXHAUSTED GPU_STOCKOUT "
        "INSUFFICIENT_CAPACITY IP_SPACE_EXHAUSTED IP_SPACE_EXHAUSTED_WITH_DETAILS "
        "UNSUPPORTED_OPERATION",
    ),
    (
        QuotaExceeded,
        "quotaExceeded limitExceeded QUOTA_EXCEEDED QUOTA_EXCEEDED_WITH_DETAILS LIMIT_EXCEEDED",
    ),
    (
        NotAllowed,
        "forbidden authError required_auth unauthorized accessNotConfigured accountDisabled "
        "billingNotEnabled insufficientPermissions inaccessible SERVICE_DISABLED PERMISSION_DENIED "
        "PERMISSIONS_ERROR FORBIDDEN UNAUTHENTICATED SERVICE_ACCOUNT_ACCESS_DENIED "
        "serviceAccountAccessDenied",
    ),
    (
        ConfigurationError,
        "invalid badRequest required parseError notFound resourceNotFound invalidParameter "
        "invalidArgument conditionNotMet alreadyExists INVALID_ARGUMENT INVALID_FIELD_VALUE "
        "INVALID_USAGE NOT_FOUND RESOURCE_NOT_FOUND RESOURCE_ALREADY_EXISTS CONDITION_NOT_MET "
        "FAILED_PRECONDITION RESOURCE_IN_USE_BY_ANOTHER_RESOURCE",
    ),
    (
        ThrottlingError,
        "rateLimitExceeded userRateLimitExceeded concurrentLimitExceeded dailyLimitExceeded "
        "operationRateExceeded RATE_LIMIT_EXCEEDED RESOURCE_OPERATION_RATE_EXCEEDED "
        "OPERATION_RATE_EXCEEDED",
    ),
    # What a request names is being made or ended, and nothing is wrong with the request.
    (CloudError, "resourceNotReady RESOURCE_NOT_READY"),
    (
        OutcomeUnknown,
        "backendError internalError serviceUnavailable unavailable deadlineExceeded aborted "
        "cancelled INTERNAL_ERROR INTERNAL UNAVAILABLE DEADLINE_EXCEEDED ABORTED CANCELLED "
        "SERVICE_UNAVAILABLE",
    ),
)
CODES: Final[Mapping[str, type[CloudError]]] = MappingProxyType(
    {code: cls for cls, codes in _CLASSES for code in codes.split()}
)
# 408 and 499 are of calls that were given up half way.
_STATUSES: Final[Mapping[int, type[CloudError]]] = MappingProxyType(
    {
        400: ConfigurationError,
        401: NotAllowed,
        403: NotAllowed,
        408: OutcomeUnknown,
        429: ThrottlingError,
        499: OutcomeUnknown,
    }
)
# Says that too few instances came, and other errors beside it say why.
MIN_COUNT_NOT_REACHED: Final = "VM_MIN_COUNT_NOT_REACHED"
# Of several errors the one that leaves the most hope counts: zones differ.
_BEST_TO_RETRY_FIRST: Final = (
    ThrottlingError,
    NoCapacity,
    QuotaExceeded,
    NotAllowed,
    ConfigurationError,
    CloudError,
)
# An access token of Google's, as it stands in a header.
_TOKEN: Final = re.compile(r"\bya29\.[\w.-]+")
_SPACES: Final = re.compile(r"\s+")


def cloud_error(code: str, message: str, status: int = 400) -> CloudError:
    """The CloudError that a refused call means."""
    cls = CODES.get(code) or _STATUSES.get(status)
    if cls is None:
        cls = OutcomeUnknown if status >= 500 else CloudError
    return cls(error_text(code or str(status), message))


def answer_error(status: int, answer: Any) -> CloudError:
    """The CloudError of an answer with a status of failure, whose content may be anything."""
    error = answer.get("error") if isinstance(answer, Mapping) else None
    if not isinstance(error, Mapping):
        return cloud_error("", "", status)
    message, listed = str(error.get("message") or ""), error.get("errors")
    found = [
        cloud_error(str(item.get("reason") or ""), str(item.get("message") or message), status)
        for item in (listed if isinstance(listed, list) else ())
        if isinstance(item, Mapping)
    ]
    if not found:
        return cloud_error(str(error.get("status") or ""), message, status)
    return min(found, key=_retry_rank)


def operation_error(errors: Iterable[Mapping[str, Any]]) -> CloudError:
    """The most hopeful of the errors of operations that launched nothing. The operations are over,
    so the outcome is known whatever they say.
    """
    found = [(str(error.get("code") or ""), str(error.get("message") or "")) for error in errors]
    causes = [item for item in found if item[0] != MIN_COUNT_NOT_REACHED] or found
    classified = []
    for code, message in causes:
        one = cloud_error(code, message)
        if code == MIN_COUNT_NOT_REACHED:
            one = NoCapacity(str(one))
        elif code not in CODES or isinstance(one, OutcomeUnknown):
            one = CloudError(str(one))
        classified.append(one)
    return min(classified, key=_retry_rank, default=NoCapacity("Compute Engine made no instance"))


def is_caller_refused(error: CloudError) -> bool:
    """Whether the refusal is of the caller for now, whatever it asks for."""
    return isinstance(error, ThrottlingError | NotAllowed)


def error_text(code: str, message: str) -> str:
    """An error in words for users, without what could be a credential."""
    text = _SPACES.sub(" ", _TOKEN.sub("********", message)).strip()
    if len(text) > MESSAGE_CHARACTERS_MAX:
        text = text[:MESSAGE_CHARACTERS_MAX] + "..."
    return f"{code}: {text}" if text else code


def _retry_rank(error: CloudError) -> int:
    return next(
        (place for place, cls in enumerate(_BEST_TO_RETRY_FIRST) if isinstance(error, cls)), 0
    )
