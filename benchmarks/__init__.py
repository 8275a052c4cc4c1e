"""Benchmarks: every claim of speed, each with a named baseline measured in the same run."""
