"""Faults that a person must look at: what was wrong, where, and what to do. Nothing is lost while they wait."""

from __future__ import annotations


class LearnerStopped(RuntimeError):
    """The learner, or what loads its weights, cannot go on. The message is for a person; nothing half done is left."""
