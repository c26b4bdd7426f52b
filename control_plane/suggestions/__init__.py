"""Suggestions of a model for Bayesian searches: an effect of the control plane."""
