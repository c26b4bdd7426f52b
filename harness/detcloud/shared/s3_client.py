"""Botocore's clients for a bucket of Amazon S3 or of an S3-compatible store.

Botocore repeats throttled, broken and unanswered requests with growing pauses. Botocore takes 0.2 s
to import, so the first client imports it.
"""

from __future__ import annotations

import os
from typing import Any

from detcloud.shared.bucket_errors import BucketError
from detcloud.shared.bucket_place import BucketPlace
from detcloud.shared.bundled_packages import offer_bundle
from detcloud.shared.certificates import complete_environment
from detcloud.shared.proxies import find_proxy
from detcloud.shared.s3_errors import remedy_of

ATTEMPTS_MAX = 6
CONNECT_SECONDS_MAX = 10
READ_SECONDS_MAX = 60
# The limit on concurrent requests of all threads of a process.
CONNECTIONS_MAX = 32


def new_client(place: BucketPlace, *, for_checkpoints: bool = False) -> Any:
    """Create a botocore client for a bucket. Nothing is sent to the store.

    Each call creates a new client. Without keys in the place, credentials may be requested from the
    machine or, for checkpoints, from the trial's agent, with the waiting of `PatientFetcher`. The
    client repeats throttled, broken and unanswered requests up to ATTEMPTS_MAX attempts, with
    growing pauses. A redirect by a store with an endpoint raises BucketError and is not followed.
    Requests raise botocore's other errors untranslated. With `for_checkpoints`, variables and files
    of the user's code have no effect. If botocore is not installed, the botocore that came with the
    agent's code is used (`offer_bundle`). Proxies and authorities are those of the environment
    (`complete_environment`).

    Raise BucketError if boto3 is missing, if credentials are missing or cannot be fetched, if only
    one key of the place is set, or if a setting is invalid.
    """
    offer_bundle("s3", "botocore")
    try:
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, NoCredentialsError

        from detcloud.shared.aws import new_session, new_storage_session
    except ImportError:
        text = f"{place} cannot be used without boto3; install it with pip install 'detcloud[aws]'"
        raise BucketError(text) from None
    # Bucket names in host names, since signed URLs of the other form name no region and redirect.
    amazon: dict[str, Any] = {"s3": {"addressing_style": "virtual"}}
    # Other stores may support neither bucket host names nor the newer checksums.
    others = {
        "s3": {"addressing_style": "path"},
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    try:
        complete_environment(os.environ)
        proxies = _proxies(place.endpoint_url)
    except ValueError as error:
        raise BucketError(f"{place} cannot be used: {error}") from None
    config = Config(
        signature_version="s3v4",
        proxies=proxies,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS_MAX},
        connect_timeout=CONNECT_SECONDS_MAX,
        read_timeout=READ_SECONDS_MAX,
        max_pool_connections=CONNECTIONS_MAX,
        ignore_configured_endpoint_urls=for_checkpoints,
        **(others if place.endpoint_url else amazon),
    )
    if (place.access_key is None) != (place.secret_key is None):
        raise BucketError(f"{place} cannot be used: access_key and secret_key must be set together")
    try:
        session = new_storage_session() if for_checkpoints else new_session()
        if place.access_key is not None:
            session.set_credentials(place.access_key, place.secret_key)
        if session.get_credentials() is None:
            raise NoCredentialsError
        client = session.create_client(
            "s3", config=config, endpoint_url=place.endpoint_url, region_name=place.region
        )
        if place.endpoint_url:
            client.meta.events.register_first("needs-retry.s3", _refuse_redirect)
        return client
    except (BotoCoreError, ValueError) as error:
        remedy = remedy_of(error, for_checkpoints=for_checkpoints)
        raise BucketError(f"{place} cannot be used: {error}; {remedy}".rstrip("; ")) from None


def _proxies(endpoint_url: str | None) -> dict[str, str] | None:
    """Return botocore's proxies for a store with an endpoint, {} for a direct connection.

    Botocore ignores networks in NO_PROXY, which often list such a store. Return None for Amazon's
    own store: botocore then reads the environment. Raise ValueError if the environment names an
    invalid proxy.
    """
    if endpoint_url is None:
        return None
    proxy = find_proxy(endpoint_url)
    return {} if proxy is None else {endpoint_url.partition(":")[0]: proxy.address}


def _refuse_redirect(response: tuple[Any, Any] | None, **context: object) -> None:
    """Raise BucketError if a store's answer is a redirect, as a botocore event handler.

    Botocore would treat the redirect as a change of Amazon's region, and repeat the request without
    end. Do nothing for other answers. `response` is the answer and its parsed form, or None.
    """
    status = 0 if response is None or response[0] is None else response[0].status_code
    if 300 <= status < 400:
        raise BucketError(
            f"the store answers with a redirect ({status}), which is not followed; check its "
            "endpoint_url"
        )
