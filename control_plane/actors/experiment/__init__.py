"""The experiment actor: a search, the summaries of the trials, and the best metric."""
