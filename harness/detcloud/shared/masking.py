"""The masking of secrets in configurations, stored rows and texts.

The place decides whether a value is secret: fields with a telling name, and all environment
variables that are not listed as shown. In any text, logins and signatures in URLs are secret. All
code that shows values uses this module. Boot reports import this module under Python 3.8 too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    Loc = tuple[str | int, ...]
    """The place of a value: the keys and list positions from the root of a configuration."""

    _Replace = Callable[[Loc, Any, Any], Any]
    """Returns the replacement of a secret from its place, the value and the masked value."""

MASK: Final = "********"

VARIABLES: Final = "environment_variables"
SHOWN_VARIABLES: Final = "shown_variables"
REGISTRY_LOGIN: Final = "registry_auth"

_PLAIN_NAMES: Final = """
CUBLAS_WORKSPACE_CONFIG CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING CUDA_VISIBLE_DEVICES
GLOO_SOCKET_IFNAME HF_DATASETS_OFFLINE HF_HUB_OFFLINE KERAS_BACKEND LANG LC_ALL MKL_NUM_THREADS
NCCL_DEBUG NCCL_IB_DISABLE NCCL_P2P_DISABLE NCCL_SOCKET_IFNAME NUMEXPR_NUM_THREADS
OMP_NUM_THREADS OPENBLAS_NUM_THREADS PYTHONDONTWRITEBYTECODE PYTHONFAULTHANDLER
PYTHONHASHSEED PYTHONUNBUFFERED PYTORCH_CUDA_ALLOC_CONF TF_CPP_MIN_LOG_LEVEL
TF_FORCE_GPU_ALLOW_GROWTH TOKENIZERS_PARALLELISM TORCH_CPP_LOG_LEVEL
TORCH_DISTRIBUTED_DEBUG TRANSFORMERS_OFFLINE TZ WANDB_MODE
"""
PLAIN_VARIABLES: Final = frozenset(_PLAIN_NAMES.split())
"""Variables of libraries without secret values, which are always shown."""

_SECRET_FIELD: Final = re.compile(
    r"(?:^|[_.\- ])(?:password|passwd|passphrase|secrets?|credentials?|token|identitytoken"
    r"|registrytoken|connection_string|startup_script|webhooks?(?:_urls?)?"
    r"|(?:access|account|api|auth|encryption|private|secret|signing)[_.\- ]?key)$",
    re.IGNORECASE,
)
_URL: Final = re.compile(r"://[^\s\"'<>]+")
_LOGIN: Final = re.compile(r"(?<=://)[^/?#\s]+(?=@)")
_PARAMETER: Final = re.compile(
    r"(?<=[?&;])((?:[\w.-]*(?:token|signature|passw(?:or)?d|secret|credential|api[_-]?key"
    r"|access[_-]?key)|sig|key|auth)=)[^&;#]+",
    re.IGNORECASE,
)
_WEBHOOK: Final = re.compile(
    r"(://(?:hooks\.slack\.com|(?:\w+\.)?discord(?:app)?\.com/api/webhooks"
    r"|[\w.-]+\.webhook\.office\.com)/).+",
    re.IGNORECASE,
)
"""Webhooks with an address that is a secret, because it allows any caller to post."""

_DROPPED: Final = object()


def mask_urls(text: str) -> str:
    """Return a text with logins, signatures, tokens and webhooks in URLs masked.

    MASK replaces the login in front of the host, with or without a password, the value of a query
    parameter with a telling name, and the address of a webhook after the host. Telling names end in
    a word such as `token`, `password`, `secret` or `api_key`, or are `sig`, `key` or `auth`, in any
    case. Other text is unchanged, even if it contains secrets. A text without `://` is returned
    unchanged.
    """
    return _URL.sub(_mask_url, _LOGIN.sub(MASK, text)) if "://" in text else text


def mask_variable(variable: str, shown: Collection[str] = ()) -> str:
    """Return a variable NAME=VALUE with a masked value.

    A name in `shown` or PLAIN_VARIABLES keeps the value, with only secrets of URLs masked. Any
    other NAME without a value becomes NAME=MASK, too.
    """
    name = variable.partition("=")[0]
    is_shown = name in shown or name in PLAIN_VARIABLES
    return mask_urls(variable) if is_shown else f"{name}={MASK}"


def mask_secrets(tree: Any) -> Any:
    """Return a copy of plain values with each secret masked.

    Plain values are mappings, lists, texts, numbers, booleans and None. Secrets are the whole
    values of fields with telling names, except None, and in any text the parts of URLs that
    `mask_urls` masks. A telling name is a word such as `password`, `token` or `api_key`, or ends in
    such a word after `_`, `-`, `.` or a space, in any case. Secrets are also the environment
    variables in a field VARIABLES. Variables in PLAIN_VARIABLES and in the field SHOWN_VARIABLES
    beside it stay, except for parts of URLs. In a mapping of variables, values become texts, and
    None becomes "None". Values of other types stay; `tree` itself is not changed.
    """
    return _replace_secrets(tree, lambda loc, value, masked: masked, (), shows=True)


def mask_all_urls(tree: Any) -> Any:
    """Return a copy of plain values with the secrets of URLs masked in every text.

    `mask_urls` defines these secrets. Keys stay. The texts of fields with telling names and of
    environment variables are treated like all other texts.
    """
    if isinstance(tree, Mapping):
        return {key: mask_all_urls(item) for key, item in tree.items()}
    if isinstance(tree, list):
        return [mask_all_urls(item) for item in tree]
    return mask_urls(tree) if isinstance(tree, str) else tree


def drop_secrets(tree: Any) -> tuple[Any, list[Loc]]:
    """Return a copy of plain values without secrets, and the places of the dropped values.

    `mask_secrets` defines the secrets. Values that contain MASK in place of a secret are dropped as
    well. A text with a secret in a URL is dropped as a whole, and later items of a list move up. A
    place is the tuple of keys and indexes in `tree`. The login of a registry, in a field
    REGISTRY_LOGIN, is dropped as a whole if a part of it is secret; the places then name only the
    part.
    """
    dropped: list[Loc] = []

    def drop(loc: Loc, value: Any, masked: Any) -> Any:
        if value == masked and MASK not in str(value):
            return value
        dropped.append(loc)
        return _DROPPED

    rest = _replace_secrets(tree, drop, (), shows=True)
    return _without_broken_logins(rest, dropped), dropped


def _without_broken_logins(tree: Any, dropped: list[Loc]) -> Any:
    """Return a copy of a tree without registry logins that contained a dropped place.

    A login is the value of a field REGISTRY_LOGIN. The field is removed as well. Return the tree
    itself if no login contained a dropped place.
    """
    logins = {loc[: loc.index(REGISTRY_LOGIN) + 1] for loc in dropped if REGISTRY_LOGIN in loc}

    def copy(value: Any, loc: Loc) -> Any:
        if isinstance(value, list):
            return [copy(item, (*loc, n)) for n, item in enumerate(value)]
        if not isinstance(value, Mapping):
            return value
        return {
            key: copy(item, (*loc, key)) for key, item in value.items() if (*loc, key) not in logins
        }

    return copy(tree, ()) if logins else tree


def find_masks(tree: Any) -> list[Loc]:
    """Return the places of secret values that contain MASK, in the order of the tree.

    Users must replace such masks by the secrets. `mask_secrets` defines the secrets, except that
    every environment variable counts as secret here. MASK in any other text counts only if the text
    contains `://`. A place is the tuple of keys and indexes in `tree`. Return an empty list without
    masks.
    """
    found: list[Loc] = []

    def keep(loc: Loc, value: Any, masked: Any) -> Any:
        if MASK in str(value):
            found.append(loc)
        return value

    _replace_secrets(tree, keep, (), shows=False)
    return found


def mask_document(value: Any, parse_config: Callable[[str], Any]) -> Any:
    """Return a copy of a stored row's JSON values with each secret masked.

    Texts that are JSON objects or lists are replaced by their parsed values, at any depth.
    `parse_config` parses any other text in a field `config`, which is a configuration as a user
    wrote it; its errors are passed on. `mask_secrets` defines the secrets.
    """
    return mask_secrets(_open_texts(value, parse_config))


def _open_texts(value: Any, parse_config: Callable[[str], Any], key: object = None) -> Any:
    if isinstance(value, Mapping):
        return {name: _open_texts(item, parse_config, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_open_texts(item, parse_config) for item in value]
    if not isinstance(value, str):
        return value
    if value[:1] in ("{", "["):
        try:
            return _open_texts(json.loads(value), parse_config)
        except (ValueError, RecursionError):
            pass
    return parse_config(value) if key == "config" else value


def _replace_secrets(value: Any, replace: _Replace, loc: Loc, *, shows: bool) -> Any:
    """Return a copy of plain values with each secret replaced by `replace`.

    `mask_secrets` defines the secrets. A replacement of _DROPPED removes the value. `loc` is the
    place of `value`. `replace` also receives shown variables, whose masked value may equal the
    value, and texts with a URL that contain MASK already. Without `shows`, every environment
    variable is a secret.
    """
    if isinstance(value, str):
        masked = mask_urls(value)
        is_secret = masked != value or (MASK in value and "://" in value)
        return replace(loc, value, masked) if is_secret else value
    if isinstance(value, list):
        items = [
            _replace_secrets(item, replace, (*loc, n), shows=shows) for n, item in enumerate(value)
        ]
        return [item for item in items if item is not _DROPPED]
    if not isinstance(value, Mapping):
        return value
    copy: dict[Any, Any] = {}
    for key, item in value.items():
        place = (*loc, key)
        if key == VARIABLES:
            shown = _names(value.get(SHOWN_VARIABLES)) if shows else None
            copy[key] = _replace_variables(item, replace, place, shown)
        elif _is_secret_field(key, loc) and item is not None and not _is_webhook_choice(item):
            copy[key] = replace(place, item, MASK)
        else:
            copy[key] = _replace_secrets(item, replace, place, shows=shows)
    return {key: item for key, item in copy.items() if item is not _DROPPED}


def _replace_variables(
    value: Any, replace: _Replace, loc: Loc, shown: Collection[str] | None
) -> Any:
    """Return a copy of configured variables, in any form, with each variable replaced.

    Forms are a text NAME=VALUE, a list of such texts, a mapping by name, and mappings of these. In
    a mapping by name, values become texts, and None becomes "None". `shown` are the names of
    variables to show, which `replace` receives as well. None means that all variables are secret. A
    replacement of _DROPPED removes the variable. `loc` is the place of `value`.
    """
    if isinstance(value, str):
        return _replace_variable(value, replace, loc, shown)
    if isinstance(value, list):
        items = [
            _replace_variables(item, replace, (*loc, n), shown) for n, item in enumerate(value)
        ]
        return [item for item in items if item is not _DROPPED]
    if not isinstance(value, Mapping):
        return value
    copy: dict[Any, Any] = {}
    for key, item in value.items():
        place = (*loc, key)
        if isinstance(item, (list, Mapping)):
            copy[key] = _replace_variables(item, replace, place, shown)
            continue
        variable = _replace_variable(f"{key}={item}", replace, place, shown)
        copy[key] = variable if variable is _DROPPED else variable.partition("=")[2]
    return {key: item for key, item in copy.items() if item is not _DROPPED}


def _mask_url(match: re.Match[str]) -> str:
    url = _PARAMETER.sub(rf"\g<1>{MASK}", match[0])
    return _WEBHOOK.sub(rf"\g<1>{MASK}", url)


def _replace_variable(
    variable: str, replace: _Replace, loc: Loc, shown: Collection[str] | None
) -> Any:
    name = variable.partition("=")[0]
    masked = f"{name}={MASK}" if shown is None else mask_variable(variable, shown)
    return replace(loc, variable, masked)


def _is_secret_field(key: object, loc: Loc) -> bool:
    if not isinstance(key, str):
        return False
    is_login = loc[-1:] == (REGISTRY_LOGIN,) and key == "auth"
    return is_login or _SECRET_FIELD.search(key) is not None


def _is_webhook_choice(value: Any) -> bool:
    """Return whether a value is a choice of webhooks by id and name, which has no secret."""
    fields = {"webhook_id", "webhook_name", "exclude"}
    return isinstance(value, Mapping) and bool(value) and fields.issuperset(value)


def _names(value: Any) -> frozenset[str]:
    names = value if isinstance(value, (list, tuple)) else ()
    return frozenset(name for name in names if isinstance(name, str))
