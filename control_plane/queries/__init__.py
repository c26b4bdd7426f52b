"""Queries of the API: the models of answers and the functions that read them, a module per noun."""
