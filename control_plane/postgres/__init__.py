"""State on PostgreSQL, for servers on machines of one's own."""
