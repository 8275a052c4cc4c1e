"""What a step looked like, for people: one definition of each metric, and whoever wants to see it."""
