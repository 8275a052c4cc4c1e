"""`hindstream demo`: a real model learns from a simulated user through the whole pipeline."""
