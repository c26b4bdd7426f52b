"""The `detcloud` command line."""
