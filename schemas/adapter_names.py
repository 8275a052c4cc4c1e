"""The name under which a server has one version of a model as an adapter beside others."""

from __future__ import annotations


def version_name(model: str, version: int) -> str:
    """Of `version` of `model`: what the learner loads it under, and a pinned teacher asks for."""
    return f"{model}@{version}"
