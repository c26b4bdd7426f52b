"""The CloudProvider for Amazon EC2."""
