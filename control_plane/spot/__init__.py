"""When to buy spot machines and when on-demand ones, for work that has a deadline."""
