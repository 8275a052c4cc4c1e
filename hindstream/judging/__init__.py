"""Measuring judges: what they say about pairs whose outcome is known."""
