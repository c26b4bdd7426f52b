"""What the API shows, one module per noun: the models of answers and how they are read."""
