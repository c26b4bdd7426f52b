"""Metadata in requests: objects of JSON that are kept, and filters that find them."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import Query
from pydantic import Field

from control_plane.actors.metadata_terms import parse_term
from control_plane.agents.reports import METADATA_BYTES_MAX
from control_plane.api.request_body import RequestBody
from control_plane.errors import invalid
from detcloud.shared.json_depth import JSON_DEPTH_MAX, is_too_deep

FILTERS_MAX = 5
# Of an experiment: lists answer it for each.
EXPERIMENT_METADATA_BYTES_MAX = 4 * 1024

# Of a trial or a checkpoint: as much as code may set.
OWN_METADATA_BYTES_MAX = METADATA_BYTES_MAX

MetadataFilters = Annotated[list[str] | None, Query(max_length=FILTERS_MAX)]


class MetadataBody(RequestBody):
    """The body that sets the metadata of a trial or a checkpoint, all of it."""

    metadata: dict[str, Any]
    revision: Annotated[str, Field(max_length=64)] | None = None


def parse_metadata_filters(filters: Sequence[str] | None) -> tuple[str, ...]:
    """Return the terms of filters `key=value`; RequestError invalid for one that is not a
    filter.
    """
    terms = []
    for text in filters or ():
        try:
            terms.append(parse_term(text))
        except ValueError as error:
            raise invalid("metadata", f"{text!a:.80} {error}") from None
    return tuple(dict.fromkeys(terms))


def check_metadata(metadata: Mapping[str, Any], bytes_max: int) -> None:
    """Raise RequestError invalid for metadata that cannot be kept in so many bytes."""
    if is_too_deep(metadata):
        raise invalid("metadata", f"is nested more than {JSON_DEPTH_MAX} levels deep")
    try:
        size = len(json.dumps(metadata, ensure_ascii=False, allow_nan=False).encode())
    except (ValueError, UnicodeEncodeError):
        raise invalid(
            "metadata", "contains a number or a text that JSON cannot represent"
        ) from None
    if size > bytes_max:
        raise invalid("metadata", f"has {size} bytes as JSON; the limit is {bytes_max}")
