"""The text of a configuration for a request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detcloud.shared.errors import DetcloudError

# The cluster accepts fewer characters than this. Larger files are refused before the request.
CONFIG_BYTES_MAX = 1 << 20


def read_config_text(config: str | Path | Mapping[str, Any]) -> str:
    """Return the text of a YAML file, or a mapping as JSON, which is valid YAML.

    Raises:
        DetcloudError: the file cannot be read, exceeds 1 MiB or is not UTF-8; `config` is a text of
            several lines; or a value of the mapping has no JSON form, as NaN.
    """
    if isinstance(config, Mapping):
        try:
            return json.dumps(config, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise DetcloudError(
                f"the configuration cannot be sent: {error}; it takes numbers, texts, lists and "
                "mappings of them"
            ) from None
    if "\n" in str(config):
        raise DetcloudError(
            "the configuration is a text of several lines; expected the path of its file, or a "
            "mapping such as yaml.safe_load(text)"
        )
    try:
        with Path(config).open("rb") as file:
            data = file.read(CONFIG_BYTES_MAX + 1)
        if len(data) > CONFIG_BYTES_MAX:
            raise DetcloudError(f"{config} has more than the {CONFIG_BYTES_MAX} bytes allowed")
        return data.decode()
    except OSError as error:
        raise DetcloudError(f"{config} could not be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DetcloudError(f"{config} is not UTF-8 text; expected a YAML file") from None
