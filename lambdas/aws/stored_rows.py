"""Reading of the stored rows of a table in DynamoDB, for `python -m lambdas.dump`."""

from collections.abc import Iterator

from dynamodb_json import json_util

from control_plane.aws.state_table import read_raw_items
from lambdas.clouds import StoredRow


def read_stored_rows(table: str, partition: str) -> Iterator[StoredRow]:
    """Yield the rows of a partition by sort key, with the environment's region and credentials.

    Yield nothing for an empty partition. Raises TableError during the iteration if a read fails.
    """
    for item in read_raw_items(table, partition):
        fields = json_util.loads({key: value for key, value in item.items() if key != "b"})
        yield StoredRow(fields["s"], fields["r"], fields.get("d"), item["b"]["B"])
