"""A program of Pulumi written down for Terraform."""
