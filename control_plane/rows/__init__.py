"""Declarations of all rows of the state table. Pure, and cheap to import."""
