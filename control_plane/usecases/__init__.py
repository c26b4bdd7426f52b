"""Use cases: changes that users, operators and agents request, without HTTP."""
