"""One version into one policy server: pause, load, tag, resume, and a canary that shows that the weights moved."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learner.manifest import problems, weights_digest
from learner.policy_server import CANARY_IDS, PolicyServer, ServerAway, ServerRefused
from learner.tensors import architecture_difference

UNKNOWN_TAG = "unknown"
"""Tag of weights that no version names; the gateway records no version, and such turns are not trained."""


@dataclass(frozen=True)
class Version:
    """A weight version where it lies now."""

    policy: str
    version: int
    path: Path
    manifest: dict[str, Any]

    @property
    def tag(self) -> str:
        """What the server stamps its tokens with."""
        return str(self.version)


@dataclass(frozen=True)
class Load:
    """What came of it. `fault` is None where the version is served now. `before`, `after`: summed log-prob of the
    canary's tokens, nats; None where it did not come to that. `seconds` from the first call to the last resume.
    `serving`: what the server serves now, None where nobody can say."""

    fault: str | None
    before: float | None
    after: float | None
    seconds: float
    serving: Version | None


def load_version(server: PolicyServer, wanted: Version, serving: Version | None, base: Version) -> Load:
    """Have `server` serve `wanted`. `serving` is what it serves now, None where that is not known.

    A version that is not whole on disk, or not of version 0's architecture, is not tried. Where loading fails,
    `serving` (or `base`) is loaded again before anything is resumed, so no token is made by half loaded weights under a
    version's tag. The server is always resumed.

    Raises:
        ServerAway: it did not answer the first call; nothing was tried.
    """
    started = time.monotonic()

    def outcome(
        fault: str | None, now: Version | None, before: list[float] | None = None, after: list[float] | None = None
    ) -> Load:
        summed = [None if values is None else sum(values) for values in (before, after)]
        return Load(fault, summed[0], summed[1], time.monotonic() - started, now)

    wrong = problems(wanted.path, wanted.manifest)
    # vLLM loads a version that lacks tensors without a word, and one with a wrong shape stops its engine for good.
    if not wrong and (other := architecture_difference(wanted.path, base.path)):
        wrong = [other]
    if wrong:
        return outcome("; ".join(wrong), serving)
    if server.is_paused():  # whoever paused it died before the resume
        server.resume()
    before = server.log_probs(CANARY_IDS)
    fault, now = _exchange(server, wanted, serving or base)
    if fault:
        return outcome(fault, now, before)
    try:
        after = server.log_probs(CANARY_IDS)
    except (ServerAway, ServerRefused) as err:
        return outcome(f"loaded, and the canary was not answered: {err}", None, before)
    moved = serving is not None and weights_digest(serving.manifest) != weights_digest(wanted.manifest)
    if serving is not None and moved and before == after:
        fault = f"the canary did not move, although the weights of {wanted.version} are not those of {serving.version}"
        back, now = _exchange(server, serving, base)
        return outcome(f"{fault}; {back or f'version {serving.version} is served again'}", now, before, after)
    return outcome(None, wanted, before, after)


def _exchange(server: PolicyServer, wanted: Version, fallback: Version) -> tuple[str | None, Version | None]:
    """Load `wanted`, or `fallback` where that fails, in one pause. Returns the fault, and what is served now."""
    fault: str | None = None
    now: Version | None = None
    try:
        server.pause()
        try:
            _put(server, wanted)
            now = wanted
        except (ServerAway, ServerRefused) as err:
            now, said = (None, _disown(server)) if isinstance(err, ServerAway) else _put_back(server, fallback)
            fault = f"{err}; {said}"
        finally:
            server.resume()
    except (ServerAway, ServerRefused) as err:
        return f"{fault}; {err}" if fault else str(err), None
    return fault, now


def _put(server: PolicyServer, version: Version) -> None:
    server.reload(version.path)
    server.forget_prefixes()
    server.set_tag(version.tag)


def _put_back(server: PolicyServer, fallback: Version) -> tuple[Version | None, str]:
    try:
        _put(server, fallback)
    except (ServerAway, ServerRefused) as err:
        return None, f"version {fallback.version} could not be loaded either ({err}); {_disown(server)}"
    return fallback, f"version {fallback.version} is served"


def _disown(server: PolicyServer) -> str:
    """Stamp what nobody can name as such."""
    try:
        server.set_tag(UNKNOWN_TAG)
    except (ServerAway, ServerRefused) as err:
        return f"its tag could not be taken back: {err}"
    return f"its tokens are tagged {UNKNOWN_TAG!r}"
