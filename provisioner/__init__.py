"""Launch and termination of cloud instances for the pending work of resource pools."""
