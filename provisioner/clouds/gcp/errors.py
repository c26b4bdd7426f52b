"""The classification of Compute Engine's error codes as CloudErrors.

A refused call has reasons such as `quotaExceeded`. An operation that fails after the call was
accepted has codes such as QUOTA_EXCEEDED. The code takes precedence over the HTTP status: 403 means
a missing permission, a used-up quota or a throttled caller, and 503 with `insufficientCapacity` is
a definite refusal.

Sources: Compute Engine's "Troubleshooting bulk VM creation", "Troubleshooting VM creation" and
"Resource availability errors". More codes are from Kubernetes' cluster autoscaler.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from detcloud.shared.masking import MASK
from provisioner.clouds.gcp.refusals import explain_refusal
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
        # UNSUPPORTED_OPERATION means that a machine was preempted during the creation.
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
    # A named resource is being created or deleted. A later request may succeed.
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
# 408 and 499 mean that a call was abandoned halfway.
_STATUSES: Final[Mapping[int, type[CloudError]]] = MappingProxyType(
    {
        400: ConfigurationError,
        401: NotAllowed,
        403: NotAllowed,
        408: OutcomeUnknown,
        # Organization policies refuse by this status.
        412: ConfigurationError,
        429: ThrottlingError,
        499: OutcomeUnknown,
    }
)
# The code of a bulk insert with too few instances; further errors give the causes.
MIN_COUNT_NOT_REACHED: Final = "VM_MIN_COUNT_NOT_REACHED"
# Errors differ by zone. The error that is most likely to succeed on retry counts.
_BEST_TO_RETRY_FIRST: Final = (
    ThrottlingError,
    NoCapacity,
    QuotaExceeded,
    NotAllowed,
    ConfigurationError,
    CloudError,
)
# The refusals of a caller who lacks a permission. Other refusals have other causes, such as an API
# that is not enabled.
_PERMISSION_CODES: Final = frozenset({"forbidden", "PERMISSION_DENIED", "PERMISSIONS_ERROR"})
_INSTANCE_PERMISSION: Final = re.compile(r"\bcompute\.instances\.[a-zA-Z]+\b")
_ALREADY_EXISTS: Final = ("alreadyExists", "RESOURCE_ALREADY_EXISTS")
_GONE: Final = ("notFound", "resourceNotFound", "resourceNotReady")
# The form of Google's access tokens.
_TOKEN: Final = re.compile(r"\bya29\.[\w.-]+")
_SPACES: Final = re.compile(r"\s+")


def cloud_error(code: str, message: str, status: int = 400) -> CloudError:
    """Return the CloudError for an error code, or for the HTTP status of an unlisted code.

    If neither is listed, the error is an OutcomeUnknown if the status is 500 or above, else a plain
    CloudError. The text has the code, or the status for the code "", and the message, shortened and
    with masked tokens. The message of a refusal begins with the operator's next step, if known.
    Nothing is raised.
    """
    cls = CODES.get(code) or _STATUSES.get(status)
    if cls is None:
        cls = OutcomeUnknown if status >= 500 else CloudError
    is_definite = issubclass(cls, NotAllowed | ConfigurationError)
    return cls(
        error_text(code or str(status), explain_refusal(message) if is_definite else message)
    )


def answer_error(status: int, answer: Any) -> CloudError:
    """Return the CloudError for a response with an error status and any JSON content.

    Of several errors, return the first in the order of _BEST_TO_RETRY_FIRST. An OutcomeUnknown is
    as late in this order as a plain CloudError. Of equal errors, the first counts. An error object
    without a list is classified by its own status and message. Any other content, also None, is
    classified by the HTTP status alone. Nothing is raised.
    """
    error = answer.get("error") if isinstance(answer, Mapping) else None
    if not isinstance(error, Mapping):
        return cloud_error("", "", status)
    message, listed = str(error.get("message") or ""), error.get("errors")
    errors = [
        cloud_error(str(item.get("reason") or ""), str(item.get("message") or message), status)
        for item in (listed if isinstance(listed, list) else ())
        if isinstance(item, Mapping)
    ]
    if not errors:
        return cloud_error(str(error.get("status") or ""), message, status)
    return min(errors, key=_retry_rank)


def operation_error(errors: Iterable[Mapping[str, Any]]) -> CloudError:
    """Return the error of operations that launched nothing: the best to retry. Raise nothing.

    Of several errors, the first in the order of _BEST_TO_RETRY_FIRST counts. An unlisted code or an
    OutcomeUnknown becomes a plain CloudError, because the operations are over and launched nothing.
    The code MIN_COUNT_NOT_REACHED (too few instances) counts only without any other error, as
    NoCapacity. No error at all is NoCapacity too.
    """
    texts = [(str(error.get("code") or ""), str(error.get("message") or "")) for error in errors]
    causes = [item for item in texts if item[0] != MIN_COUNT_NOT_REACHED] or texts
    classified = []
    for code, message in causes:
        error = cloud_error(code, message)
        if code == MIN_COUNT_NOT_REACHED:
            error = NoCapacity(str(error))
        elif code not in CODES or isinstance(error, OutcomeUnknown):
            error = CloudError(str(error))
        classified.append(error)
    return best_error(classified)


def is_caller_refused(error: CloudError) -> bool:
    """Whether Compute Engine refuses every request of the caller now: throttled or not allowed.

    The class of the error decides, ThrottlingError or NotAllowed.
    """
    return isinstance(error, ThrottlingError | NotAllowed)


def is_creation_refused(error: CloudError) -> bool:
    """Whether the caller lacks a permission on instances, so that another call may be allowed.

    The text must name a permission of instances. A lack of another permission, for example on the
    subnetwork, would refuse any call.
    """
    is_about_instances = _INSTANCE_PERMISSION.search(str(error)) is not None
    return _code(error) in _PERMISSION_CODES and is_about_instances


def is_already_existing(error: CloudError) -> bool:
    """Whether the error means that an instance of the requested name exists already."""
    return _code(error) in _ALREADY_EXISTS


def is_gone(error: CloudError) -> bool:
    """Whether the error names an instance that does not exist, or is being created or deleted."""
    return _code(error) in _GONE


def best_error(errors: Sequence[CloudError]) -> CloudError:
    """Return the error that is most likely to succeed on retry; NoCapacity without errors."""
    return min(errors, key=_retry_rank, default=NoCapacity("Compute Engine made no instance"))


def _code(error: CloudError) -> str:
    """Return the code of an error: the part of the text before the first ":"."""
    return str(error).partition(":")[0]


def error_text(code: str, message: str) -> str:
    """Return an error's text for users: the code and up to MESSAGE_CHARACTERS_MAX of the message.

    Google's access tokens are masked, and white space is joined to single spaces. A shortened
    message ends with "...". Without a message, return the code alone.
    """
    text = _SPACES.sub(" ", _TOKEN.sub(MASK, message)).strip()
    if len(text) > MESSAGE_CHARACTERS_MAX:
        text = text[:MESSAGE_CHARACTERS_MAX] + "..."
    return f"{code}: {text}" if text else code


def _retry_rank(error: CloudError) -> int:
    """Return the position in _BEST_TO_RETRY_FIRST of the first class that fits the error.

    Every CloudError has a position.
    """
    return next(
        (place for place, cls in enumerate(_BEST_TO_RETRY_FIRST) if isinstance(error, cls)), 0
    )
