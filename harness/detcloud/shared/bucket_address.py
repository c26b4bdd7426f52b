"""The written address of a bucket: `s3://BUCKET/PREFIX?endpoint_url=URL&region=NAME`."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlencode, urlsplit

from detcloud.shared.bucket_place import BucketPlace
from detcloud.shared.masking import mask_urls

FORM = "s3://BUCKET[/PREFIX][?endpoint_url=URL][&region=NAME]"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_PARAMETERS = ("endpoint_url", "region")


def parse_bucket_address(text: str) -> BucketPlace:
    """Return the place of an address in the form FORM. The place has no credentials.

    Raises ValueError with a message for users. The message shows no login.
    """
    parts = urlsplit(text)
    if parts.scheme != "s3" or parts.fragment or "@" in parts.netloc:
        raise ValueError(f"{mask_urls(text)} is not {FORM}; credentials are not part of an address")
    if not _NAME.fullmatch(parts.netloc):
        raise ValueError(f"{text} names no bucket; an address is {FORM}")
    prefix = parts.path.strip("/")
    if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
        raise ValueError(f"{text} has an empty part, `.` or `..` in the prefix")
    given = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(given)
    if unknown := [name for name in options if name not in _PARAMETERS]:
        raise ValueError(
            f"the address of {parts.netloc} has the parameter {unknown[0]!r:.80}; expected "
            f"{' or '.join(_PARAMETERS)}"
        )
    if len(given) != len(options) or not all(options.values()):
        raise ValueError(f"the address of {parts.netloc} has an empty or repeated parameter")
    endpoint_url = options.get("endpoint_url")
    if endpoint_url is not None:
        check_endpoint(endpoint_url)
    return BucketPlace(parts.netloc, prefix, endpoint_url, options.get("region"))


def check_endpoint(url: str) -> None:
    """Raise ValueError unless the text is the URL of a store, without a login or a query."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or "@" in url or "?" in url or "#" in url:
        raise ValueError(
            f"endpoint_url is {mask_urls(url)}, expected http://HOST[:PORT] or https://HOST[:PORT] "
            "without a login"
        )


def bucket_address(place: BucketPlace) -> str:
    """Return the address of a place, without credentials."""
    whole = "/".join(filter(None, (f"s3://{place.name}", place.prefix.strip("/"))))
    options = {"endpoint_url": place.endpoint_url, "region": place.region}
    query = urlencode({name: value for name, value in options.items() if value}, safe=":/")
    return f"{whole}?{query}" if query else whole
