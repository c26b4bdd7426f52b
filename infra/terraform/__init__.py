"""Export of a Pulumi program to Terraform."""
