"""Use cases: the changes that users, operators and agents ask of the cluster, without HTTP."""
