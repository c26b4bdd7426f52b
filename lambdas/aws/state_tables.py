"""Access of tools to a state table in DynamoDB, by the table's name."""

from contextlib import AbstractContextManager, closing

from control_plane.aws.state_table import DynamoDbTable, create_tool_client


def open_table(name: str) -> AbstractContextManager[DynamoDbTable]:
    """Return a context manager that provides a table in DynamoDB and closes the table at the end.

    The environment's region and credentials are used. Raises TableError without a region. A missing
    table is not detected here: the first request raises TableError.
    """
    return closing(DynamoDbTable(create_tool_client(name), name))
