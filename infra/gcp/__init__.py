"""The stack of a team's cluster on Google Cloud."""
