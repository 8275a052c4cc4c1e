"""What a judge's or hint giver's server is sent, and what of its answer is kept."""

from __future__ import annotations

from typing import Any

from processors.evaluators.server import TransientFault


def completion_body(
    model: str, messages: list[dict[str, str]], sampling: dict[str, Any], constraint: dict[str, Any] | None
) -> dict[str, Any]:
    """A request to `/v1/chat/completions`."""
    held = {} if constraint is None else {"structured_outputs": constraint}
    return {"model": model, "messages": messages, **sampling, **held}


def completion_content(plain: dict[str, Any]) -> dict[str, Any]:
    """What of a chat completion is kept: `content`, `finish_reason`, and the tokens that it cost where the server says.

    Raises:
        TransientFault: it is none.
    """
    try:
        choice = plain["choices"][0]
        content = choice["message"].get("content")
        if content is not None and not isinstance(content, str):
            raise TypeError(f"its content is a {type(content).__name__}")
        return {"content": content, "finish_reason": choice.get("finish_reason"), **_cost(plain.get("usage"))}
    except (KeyError, IndexError, TypeError, AttributeError) as err:
        raise TransientFault(f"the answer is no chat completion ({type(err).__name__}: {err})") from err


def _cost(usage: Any) -> dict[str, Any]:
    """`usage` with its two counts; nothing where the server does not say both."""
    if not isinstance(usage, dict):
        return {}
    counts = {name: usage.get(name) for name in ("prompt_tokens", "completion_tokens")}
    return {"usage": counts} if all(type(count) is int and count >= 0 for count in counts.values()) else {}
