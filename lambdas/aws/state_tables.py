"""A state table in DynamoDB by its name, for tools."""

from contextlib import AbstractContextManager, closing

from control_plane.aws.state_table import DynamoDbTable, create_client


def open_table(name: str) -> AbstractContextManager[DynamoDbTable]:
    """Open a table for a block, with the environment's region and credentials."""
    return closing(DynamoDbTable(create_client(), name))
