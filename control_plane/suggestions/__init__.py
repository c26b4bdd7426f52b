"""Suggestions of hyperparameters for Bayesian searches, from a model outside the actors."""
