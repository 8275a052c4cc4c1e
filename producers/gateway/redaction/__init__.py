"""Replacing what may not be recorded, before an event leaves the process."""
