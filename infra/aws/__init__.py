"""The stack of a team on AWS, as a program of Pulumi."""
