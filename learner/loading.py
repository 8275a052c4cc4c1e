"""One version into one policy server: pause, load, tag, resume, and a canary that shows that the weights moved."""

from __future__ import annotations

import time
from dataclasses import dataclass

from learner.policy_server import PolicyServer, ServerAway, ServerRefused
from learner.servable import Servable

UNKNOWN_TAG = "unknown"
"""Tag of weights that no version names; the gateway records no version, and such turns are not trained."""


@dataclass(frozen=True)
class Load:
    """What came of it. `fault` is None where the version is served now. `before`, `after`: summed log-prob of the
    canary's tokens, nats; None where it did not come to that. `seconds` from the first call to the last resume.
    `serving`: what the server serves now, None where nobody can say."""

    fault: str | None
    before: float | None
    after: float | None
    seconds: float
    serving: Servable | None


def load_version(server: PolicyServer, wanted: Servable, serving: Servable | None, base: Servable) -> Load:
    """Have `server` serve `wanted`. `serving` is what it serves now, None where that is not known.

    A version that is not whole on disk, or not of version 0's architecture, is not tried, nor an adapter where the
    server's name of the model leaves no place for one. The weights under adapters are loaded once. Where loading fails,
    `serving` (or `base`) is loaded again before anything is resumed, so no token is made by half loaded weights under a
    version's tag. The server is always resumed.

    Raises:
        ServerAway: it did not answer the first call; nothing was tried.
    """
    started = time.monotonic()

    def outcome(
        fault: str | None, now: Servable | None, before: list[float] | None = None, after: list[float] | None = None
    ) -> Load:
        summed = [None if values is None else sum(values) for values in (before, after)]
        return Load(fault, summed[0], summed[1], time.monotonic() - started, now)

    wrong = wanted.faults(base, None if serving is None else serving.weights)
    if not wrong and wanted.adapter is not None and not server.takes_adapters():
        wrong = [
            "it is an adapter, and the model's name is that of the server's base model: choose another name for the "
            "policy (HINDSTREAM_POLICY__MODEL)"
        ]
    if wrong:
        return outcome("; ".join(wrong), serving)
    if server.is_paused():  # whoever paused it died before the resume
        server.resume()
    before = server.canary() if server.answers() else None
    fault, now = _exchange(server, wanted, serving, base)
    if fault:
        return outcome(fault, now, before)
    try:
        after = server.canary()
    except (ServerAway, ServerRefused) as err:
        return outcome(f"loaded, and the canary was not answered: {err}", None, before)
    if serving is not None and serving.digest != wanted.digest and before == after:
        fault = f"the canary did not move, although the weights of {wanted.tag} are not those of {serving.tag}"
        back, now = _exchange(server, serving, None, base)
        return outcome(f"{fault}; {back or f'version {serving.tag} is served again'}", now, before, after)
    return outcome(None, wanted, before, after)


def _exchange(
    server: PolicyServer, wanted: Servable, serving: Servable | None, base: Servable
) -> tuple[str | None, Servable | None]:
    """Load `wanted`, or `serving` (`base` where that is not known) where that fails, in one pause. Returns the fault,
    and what is served now."""
    fault: str | None = None
    now: Servable | None = None
    try:
        server.pause()
        try:
            _put(server, wanted, serving)
            now = wanted
        except (ServerAway, ServerRefused) as err:
            away = isinstance(err, ServerAway)
            now, said = (None, _disown(server)) if away else _put_back(server, serving or base)
            fault = f"{err}; {said}"
        finally:
            server.resume()
    except (ServerAway, ServerRefused) as err:
        return f"{fault}; {err}" if fault else str(err), None
    return fault, now


def _put(server: PolicyServer, wanted: Servable, serving: Servable | None) -> None:
    """`serving`: what the server holds; None: everything is loaded."""
    if wanted.adapter is None or serving is None or serving.weights.path != wanted.weights.path:
        server.reload(wanted.weights.path)
    if wanted.adapter is not None:
        server.load_adapter(wanted.adapter)
    server.forget_prefixes()
    server.set_tag(wanted.tag)


def _put_back(server: PolicyServer, fallback: Servable) -> tuple[Servable | None, str]:
    try:
        _put(server, fallback, None)
    except (ServerAway, ServerRefused) as err:
        return None, f"version {fallback.tag} could not be loaded either ({err}); {_disown(server)}"
    return fallback, f"version {fallback.tag} is served"


def _disown(server: PolicyServer) -> str:
    """Stamp what nobody can name as such."""
    try:
        server.set_tag(UNKNOWN_TAG)
    except (ServerAway, ServerRefused) as err:
        return f"its tag could not be taken back: {err}"
    return f"its tokens are tagged {UNKNOWN_TAG!r}"
