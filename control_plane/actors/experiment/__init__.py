"""The experiment actor: a search, the summaries of its trials and its best metric."""
