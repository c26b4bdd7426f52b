"""Metadata in requests: checks of JSON objects to store, and filters of lists by metadata."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import Query
from pydantic import Field

from control_plane.actors.metadata_terms import parse_term
from control_plane.agents.reports import METADATA_BYTES_MAX
from control_plane.api.request_body import RequestBody
from control_plane.errors import invalid
from control_plane.json_gate import JsonRefused, check_size, check_value

FILTERS_MAX = 5
# The limit for an experiment is low, because lists contain the metadata of every experiment.
EXPERIMENT_METADATA_BYTES_MAX = 4 * 1024

# The limit for a trial or a checkpoint, equal to the limit for metadata from training code.
OWN_METADATA_BYTES_MAX = METADATA_BYTES_MAX

MetadataFilters = Annotated[list[str] | None, Query(max_length=FILTERS_MAX)]


class MetadataBody(RequestBody):
    """The body that replaces all metadata of a trial or a checkpoint.

    With `revision`, the metadata are replaced only if they still have this revision.
    """

    metadata: dict[str, Any]
    revision: Annotated[str, Field(max_length=64)] | None = None


def parse_metadata_filters(filters: Sequence[str] | None) -> tuple[str, ...]:
    """Return the terms of filters such as `key=value`, each term once. Empty for None.

    Raises:
        RequestError: invalid, for a text that is not a filter.
    """
    terms = []
    for text in filters or ():
        try:
            terms.append(parse_term(text))
        except ValueError as error:
            raise invalid("metadata", f"{text!a:.80} {error}") from None
    return tuple(dict.fromkeys(terms))


def check_metadata(metadata: Mapping[str, Any], bytes_max: int) -> None:
    """Check that metadata can be stored, and have at most `bytes_max` bytes as JSON.

    Raises:
        RequestError: invalid, for other metadata.
    """
    try:
        check_value(metadata, at=("metadata",))
        check_size(metadata, bytes_max, "metadata")
    except JsonRefused as refused:
        raise invalid(refused.place, refused.message) from None
