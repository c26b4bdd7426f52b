"""Settings for company accounts: keys, role boundaries, tags, networks, domains.

Each parser of PARSERS returns a value, or raises ValueError with a text of what was expected.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from provisioner.clouds.provider import CLUSTER_TAG

# EC2 allows 50 tags. pool_checks checks the sum with the tags of the cluster and of a pool.
TAGS_MAX: Final = 20
# A role's name has at most 64 characters: 64 - len("detcloud-" + 20 + "-checkpoint-gc") = 21.
PREFIX_CHARACTERS_MAX: Final = 20
# AWS services that an instance or the boot script may call; see docs/aws.md.
ENDPOINTS: Final = ("ecr.api", "ecr.dkr", "logs", "ssm", "ssmmessages", "sts")
# Settings that messages must not quote.
SECRETS: Final = frozenset({"originSecret"})
# An instance reads tags from the metadata service, which allows only these characters in keys.
_TAG_KEY: Final = re.compile(r"(?!aws:|detcloud-)[A-Za-z0-9+\-=.,_:@]{1,128}")
_DOMAIN: Final = re.compile(r"(?=.{4,253}\Z)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63}")


def find_inconsistencies(values: Mapping[str, Any]) -> list[str]:
    """Return a line for each contradiction between individually valid settings.

    Return [] without contradictions. `values` maps field names of Settings to parsed values;
    `account` and `region` are required. Check that ARNs match account and region, and that
    dependent settings occur together.
    """
    account, region = values["account"], values["region"]
    found = []
    for name, places in (
        ("web_acl", f":wafv2:us-east-1:{account}:"),
        ("kms_key", f":kms:{region}:{account}:"),
        ("certificate", f":acm:{region}:{account}:"),
        ("permissions_boundary", f":iam::{account}:"),
    ):
        if values.get(name) and places not in values[name]:
            of_region = "us-east-1" if "wafv2" in places else region
            where = f"account {account}" + ("" if "iam" in places else f" and region {of_region}")
            found.append(f"detcloud:{_camel(name)} is {values[name]}: expected one of {where}")
    if bool(values.get("domain")) != bool(values.get("certificate")):
        found.append(
            "detcloud:domain and detcloud:certificate must be set together: set both or neither"
        )
    if values.get("hosted_zone") and not values.get("domain"):
        found.append("detcloud:domain is missing: detcloud:hostedZone gets its record")
    if values.get("web_acl") and values.get("domain"):
        found.append(
            "detcloud:webAcl and detcloud:domain exclude each other: the API's address is then "
            "CloudFront's"
        )
    if values.get("origin_secret") and not values.get("web_acl"):
        found.append("detcloud:webAcl is missing: detcloud:originSecret is CloudFront's")
    if values.get("private_subnets") and values.get("network") is not None:
        found.append(
            "detcloud:privateSubnets is for the stack's own network: remove it, and set "
            "provider.network_interface.public_ip: false in the pools"
        )
    if values.get("relay") and values.get("network") is not None:
        found.append(
            "detcloud:relay needs a public subnet of the stack's own network: remove "
            "detcloud:network, or set detcloud:relay: false"
        )
    if values.get("endpoints") and not values.get("private_subnets"):
        found.append("detcloud:endpoints are for private subnets: set detcloud:privateSubnets too")
    return found


def _text_parser(pattern: str, expected: str) -> Callable[[str], str]:
    """Return a parser that returns matching texts and raises ValueError(expected) for others."""

    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(expected)
        return text

    return parse


def _parse_tags(text: str) -> dict[str, str]:
    """Return the tags of a JSON map.

    Raise ValueError with a text of what was expected if `text` is no map of at most TAGS_MAX tags,
    or if a tag is invalid.
    """
    tags = _decode_json(text)
    if not isinstance(tags, dict) or len(tags) > TAGS_MAX:
        raise ValueError(f"a map of at most {TAGS_MAX} tags, each a text")
    for key, value in tags.items():
        if not _TAG_KEY.fullmatch(key) or key in ("Name", CLUSTER_TAG):
            raise ValueError(
                "keys of 1 to 128 letters, digits and +-=.,_:@, which are not Name and begin "
                "neither with aws: nor with detcloud-"
            )
        if not isinstance(value, str) or not re.fullmatch(r"[\w\s+\-=.:/@]{0,256}", value):
            raise ValueError("values of at most 256 letters, digits, spaces and +-=._:/@")
    return tags


def _parse_endpoints(text: str) -> tuple[str, ...]:
    """Return the names of a JSON list without duplicates, in the order of the list.

    Raise ValueError with a text of what was expected if `text` is no JSON list, or if a name is not
    in ENDPOINTS. Return () for an empty list.
    """
    names = _decode_json(text)
    if isinstance(names, list) and "execute-api" in names:
        # The endpoint's private DNS names capture every HTTP API's address and then answer 403.
        raise ValueError("no execute-api: HTTP APIs have no endpoints, instances need a way out")
    if not isinstance(names, list) or not set(map(str, names)) <= set(ENDPOINTS):
        raise ValueError(f"a list of some of {', '.join(ENDPOINTS)}")
    return tuple(dict.fromkeys(names))


def _parse_secret(text: str) -> str:
    """Return the secret unchanged. Raise ValueError with a text that does not quote the secret."""
    # The message must not contain any part of the secret.
    if not re.fullmatch(r"[A-Za-z0-9_-]{32,128}", text):
        raise ValueError("32 to 128 letters, digits, - and _")
    return text


def _parse_bool(text: str) -> bool:
    """Return whether the text is `true`. Raise ValueError unless the text is `true` or `false`."""
    if text not in ("true", "false"):
        raise ValueError("true or false")
    return text == "true"


def _parse_domain(text: str) -> str:
    """Return a host name unchanged. Raise ValueError with a text of what was expected."""
    if not _DOMAIN.fullmatch(text):
        raise ValueError("a lowercase host name, such as detcloud.example.com")
    return text


def _decode_json(text: str) -> Any:
    """Return the decoded JSON, or None if the text is not valid JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _camel(name: str) -> str:
    """Convert a name in snake case to camel case."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


PARSERS: Final[dict[str, Callable[[str], object]]] = {
    "kmsKey": _text_parser(
        r"arn:aws:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+",
        "the ARN of a key, arn:aws:kms:REGION:ACCOUNT:key/..., and no alias",
    ),
    "permissionsBoundary": _text_parser(
        r"arn:aws:iam::[0-9]{12}:policy/[\w+=,.@/-]{1,512}",
        "the ARN of a policy, arn:aws:iam::ACCOUNT:policy/...",
    ),
    "iamPath": _text_parser(
        r"/([A-Za-z0-9._+=@-]+/){0,20}", "a path that begins and ends with /, such as /teams/ml/"
    ),
    "iamPrefix": _text_parser(
        rf"[A-Za-z0-9+=,.@_-]{{1,{PREFIX_CHARACTERS_MAX}}}",
        f"1 to {PREFIX_CHARACTERS_MAX} letters, digits and +=,.@_-",
    ),
    "tags": _parse_tags,
    "webAcl": _text_parser(
        r"arn:aws:wafv2:us-east-1:[0-9]{12}:global/webacl/[A-Za-z0-9_-]{1,128}/[a-f0-9-]+",
        "the ARN of a web ACL for CloudFront, arn:aws:wafv2:us-east-1:ACCOUNT:global/webacl/...",
    ),
    "originSecret": _parse_secret,
    "sessionManager": _parse_bool,
    "endpoints": _parse_endpoints,
    "domain": _parse_domain,
    "certificate": _text_parser(
        r"arn:aws:acm:[a-z0-9-]+:[0-9]{12}:certificate/[a-z0-9-]+",
        "the ARN of a certificate, arn:aws:acm:REGION:ACCOUNT:certificate/...",
    ),
    "hostedZone": _text_parser(r"Z[A-Z0-9]{1,31}", "the id of a hosted zone, such as Z0123ABC"),
}
