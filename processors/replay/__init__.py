"""Replaying a log under another recipe: live runs are not touched, and the same inputs give the same micro-batches."""
