"""The self-test of a deployed cluster: `detcloud deploy verify`."""
