"""State on PostgreSQL, for servers on own machines."""
