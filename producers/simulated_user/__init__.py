"""A simulated user who wants short answers: what he asks, what he likes, and how he says so."""
