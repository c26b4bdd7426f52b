"""The calls of EC2's API, with the SDK's errors translated to ours."""

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
# A fleet answers in a few seconds; later than this the next pass asks again with the same token.
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
    """The calls of EC2 that are used, as boto3's client has them: the permissions needed."""

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
    """Create a client that never retries a call, of a session of botocore or else with the
    environment's credentials. Raises NotAllowed, ConfigurationError.
    """
    config = Config(
        retries={"total_max_attempts": 1},
        connect_timeout=CONNECT_SECONDS,
        read_timeout=ANSWER_SECONDS,
    )
    with translate_errors():
        made = session or new_session()
        client: Ec2Api = made.create_client("ec2", region or None, config=config)
        return client


def read_pages(describe: Callable[..., dict[str, Any]], **request: Any) -> Iterator[dict[str, Any]]:
    """Every page of an answer."""
    token = ""
    while True:
        page = describe(**request, **({"NextToken": token} if token else {}))
        yield page
        token = page.get("NextToken", "")
        if not token:
            return


def equal_filter(name: str, value: str) -> dict[str, Any]:
    """The filter of a description for one value."""
    return {"Name": name, "Values": [value]}


def tag_filters(tags: dict[str, str]) -> list[dict[str, Any]]:
    """The filters for things with all of these tags."""
    return [equal_filter(f"tag:{key}", value) for key, value in tags.items()]


def epoch_ms(time: Any) -> int:
    """A time of the SDK as epoch milliseconds."""
    return int(time.timestamp() * 1000)


def error_code(error: sdk.ClientError) -> str:
    """The code of a refusal."""
    return str(error.response["Error"].get("Code", ""))


def error_message(error: sdk.ClientError) -> str:
    """The message of a refusal."""
    return str(error.response["Error"].get("Message", ""))


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise the SDK's errors as CloudError, without a cause: theirs hold what no log should."""
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
