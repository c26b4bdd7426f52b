"""Suggestions of hyperparameters for Bayesian searches, made by a model outside the actors."""
