"""Calls of the AWS SDK. Refusals become Unknown facts."""

from collections.abc import Callable
from typing import TypeVar

import botocore.exceptions as sdk

from infra.findings import Unknown

T = TypeVar("T")


def ask_aws(needs: str, read: Callable[[], T]) -> T | Unknown:
    """Return the result of `read`, or Unknown with the reason if the AWS SDK raises an error.

    `needs` names the permissions of the read.
    """
    try:
        return read()
    except sdk.ClientError as error:
        return Unknown(needs, f"AWS answered {error_code(error)}")
    except sdk.BotoCoreError as error:
        return Unknown(needs, f"AWS could not be queried: {type(error).__name__}")


def error_code(error: sdk.ClientError) -> str:
    """Return AWS's error code, or "an error" without a code."""
    return str(error.response.get("Error", {}).get("Code", "")) or "an error"


def error_message(error: sdk.ClientError) -> str:
    """Return AWS's error message, or ""."""
    return str(error.response.get("Error", {}).get("Message", ""))
