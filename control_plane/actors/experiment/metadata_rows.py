"""The rows by which searches find an experiment: a row for each term of the metadata."""

from collections.abc import Mapping

from control_plane.actors.experiment.state import listing_sort_key
from control_plane.actors.metadata_terms import TERMS_MAX, metadata_partition, metadata_terms
from control_plane.actors.step import CommandRefused, StepContext


def write_metadata_rows(
    experiment_id: int,
    before: Mapping[str, object],
    after: Mapping[str, object],
    context: StepContext,
) -> None:
    """Write the rows of new metadata terms, and remove the rows of terms that no longer exist.

    Terms that both have are not written. Empty metadata has no terms.

    Args:
        before: the metadata whose rows are stored.
        after: the new metadata. Empty to remove all rows.

    Raises:
        CommandRefused: invalid; the new metadata has more than TERMS_MAX terms.
    """
    old, new = metadata_terms(before), metadata_terms(after)
    if len(new) > TERMS_MAX:
        raise CommandRefused(
            "invalid", f"metadata: has {len(new)} values; at most {TERMS_MAX} are allowed"
        )
    for term in sorted(old ^ new):
        body = b"" if term in new else None
        context.write_row(metadata_partition(term), listing_sort_key(experiment_id), body)
