"""The client of EC2's API, and the translation of the SDK's errors to CloudErrors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import botocore.exceptions as sdk
from botocore.config import Config
from botocore.parsers import ResponseParserError

from detcloud.shared.aws import new_session
from provisioner.clouds.aws.errors import cloud_error
from provisioner.clouds.provider import ConfigurationError, NotAllowed, OutcomeUnknown

CONNECT_SECONDS = 3
# EC2 responds to a fleet request in a few seconds. A request without a response is repeated.
ANSWER_SECONDS = 15
PAGE_SIZE = 1000

_NO_ANSWER = (sdk.HTTPClientError, ResponseParserError)
_NO_CREDENTIALS = (
    sdk.NoCredentialsError,
    sdk.PartialCredentialsError,
    sdk.CredentialRetrievalError,
    sdk.TokenRetrievalError,
)


class Ec2Api(Protocol):
    """The methods of boto3's EC2 client that the provisioner calls; each needs a permission."""

    def create_fleet(self, **request: Any) -> dict[str, Any]: ...
    def create_launch_template(self, **request: Any) -> dict[str, Any]: ...
    def delete_launch_template(self, **request: Any) -> dict[str, Any]: ...
    def describe_capacity_reservations(self, **request: Any) -> dict[str, Any]: ...
    def describe_images(self, **request: Any) -> dict[str, Any]: ...
    def describe_instance_types(self, **request: Any) -> dict[str, Any]: ...
    def describe_instances(self, **request: Any) -> dict[str, Any]: ...
    def describe_launch_templates(self, **request: Any) -> dict[str, Any]: ...
    def describe_spot_instance_requests(self, **request: Any) -> dict[str, Any]: ...
    def describe_spot_price_history(self, **request: Any) -> dict[str, Any]: ...
    def describe_subnets(self, **request: Any) -> dict[str, Any]: ...
    def get_console_output(self, **request: Any) -> dict[str, Any]: ...
    def terminate_instances(self, **request: Any) -> dict[str, Any]: ...


def create_ec2_client(region: str, session: Any = None) -> Ec2Api:
    """Create an EC2 client that never retries a call; make no call yet.

    `session` is a botocore session; without one, the environment's credentials are used. An empty
    region means the region of the session or environment. A call of the client fails after
    CONNECT_SECONDS without a connection, and after ANSWER_SECONDS without data from EC2. The
    client's methods raise the SDK's errors (`translate_errors`). Raises NotAllowed for incomplete
    credentials, and ConfigurationError without a region. Missing credentials fail the first call.
    """
    config = Config(
        retries={"total_max_attempts": 1},
        connect_timeout=CONNECT_SECONDS,
        read_timeout=ANSWER_SECONDS,
    )
    with translate_errors():
        session = session or new_session()
        client: Ec2Api = session.create_client("ec2", region or None, config=config)
        return client


def read_pages(describe: Callable[..., dict[str, Any]], **request: Any) -> Iterator[dict[str, Any]]:
    """Call `describe` with `request` for each page of the result, and yield the pages.

    At least one page is yielded. Each page is requested when the caller needs it. Errors of
    `describe` are passed on, after the earlier pages were yielded.
    """
    token = ""
    while True:
        page = describe(**request, **({"NextToken": token} if token else {}))
        yield page
        token = page.get("NextToken", "")
        if not token:
            return


def equal_filter(name: str, value: str) -> dict[str, Any]:
    """Return an EC2 filter that selects resources by the value of a property."""
    return {"Name": name, "Values": [value]}


def tag_filters(tags: dict[str, str]) -> list[dict[str, Any]]:
    """Return EC2 filters that select resources with all of the given tags.

    Return [], which selects all resources, without tags.
    """
    return [equal_filter(f"tag:{key}", value) for key, value in tags.items()]


def epoch_ms(time: Any) -> int:
    """Convert a datetime of the SDK, with a time zone, to epoch milliseconds, rounded down."""
    return int(time.timestamp() * 1000)


def error_code(error: sdk.ClientError) -> str:
    """Return EC2's code of an error, or ""."""
    return str(error.response["Error"].get("Code", ""))


def error_message(error: sdk.ClientError) -> str:
    """Return EC2's message of an error, or ""."""
    return str(error.response["Error"].get("Message", ""))


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise the SDK's errors in the block as CloudErrors, without the cause.

    The cause may contain secrets.

    - A refusal by EC2 becomes the CloudError of its code (`errors.cloud_error`).
    - A missing or unreadable answer becomes OutcomeUnknown.
    - Missing or incomplete credentials, or ones that cannot be loaded, become NotAllowed.
    - Any other SDK error, such as a missing region or a wrong parameter, becomes
      ConfigurationError.
    - CloudErrors and all other exceptions are passed on.
    """
    try:
        yield
    except sdk.ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
        raise cloud_error(error_code(error), error_message(error), status) from None
    except _NO_ANSWER as error:
        raise OutcomeUnknown(f"EC2 did not answer: {type(error).__name__}") from None
    except _NO_CREDENTIALS as error:
        raise NotAllowed(f"no credentials for AWS: {type(error).__name__}") from None
    except sdk.BotoCoreError as error:
        raise ConfigurationError(f"EC2 cannot be queried: {str(error)[:400]}") from None
