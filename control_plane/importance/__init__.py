"""The importance of hyperparameters by fANOVA, without packages for numeric computing."""
