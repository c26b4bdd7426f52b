"""The engine that advances actors on a state table."""
