"""What a server scored once is kept by all that shaped it, and asked for no second time; scores of other weights than a
recipe pins are never kept as the pin's."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from processors.evaluators.answers import answer_digest, recorded_answer
from processors.evaluators.once import asked_once
from processors.evaluators.prompt_scores import score_response
from processors.evaluators.score_reading import TeacherFailed
from processors.evaluators.server import ModelServer, TransientFault
from processors.transactions import Transactions
from schemas.adapter_names import version_name
from schemas.arrays import pack_floats, pack_ids
from schemas.digests import sha256_hex


class WrongVersion(TransientFault):
    """The server serves other weights than the recipe pins; somebody may load them."""


@dataclass(frozen=True, kw_only=True)
class Asking:
    """Whom to ask, and how. `policy`: who names the student's likeliest tokens. `replayed`: what any run recorded to
    the same question counts, whichever weight version answered (unless one is pinned)."""

    teacher: ModelServer
    policy: ModelServer
    transactions: Transactions
    replayed: bool = False


@dataclass(frozen=True, eq=False)
class Key:
    """What shapes an answer, the weights aside."""

    model: str
    prompt: list[int]
    response: list[int]
    top_k: int
    at_ids: NDArray[np.int32] | None

    def digest_at(self, version: str | None) -> str:
        """Key of the answer by `version`; None: of the question."""
        rendered: list[Any] = [len(self.prompt), sha256_hex(pack_ids(self.prompt + self.response))]
        if self.at_ids is not None:
            rendered += [self.at_ids.shape[1], sha256_hex(pack_ids(self.at_ids.ravel()))]
        return answer_digest(
            purpose="teacher",
            model=self.model,
            version=version,
            prompt_digest=None,
            rendered=rendered,
            sampling={"prompt_logprobs": self.top_k},
            vote=None,
        )


async def kept_scores(asking: Asking, server: ModelServer, key: Key, pinned: int | None) -> tuple[dict[str, Any], str]:
    """The answer to `key`, and its own key in `model_answers`. `pinned`: only this weight version's counts.

    Raises:
        TeacherFailed: the server's answer does not allow it.
        TransientFault: no answer now; `WrongVersion` where other weights than the pinned are served.
    """
    transactions, question = asking.transactions, key.digest_at(None)
    if asking.replayed and pinned is None and (found := await transactions.run(recorded_answer, question)) is not None:
        return found

    async def digest_now() -> str:
        return key.digest_at(str(pinned) if pinned is not None else await server.version())

    async def score(digest: str) -> tuple[dict[str, Any], str]:
        if pinned is not None:
            _check_pin(server, await server.version(), pinned)
        scores = await score_response(server, key.prompt, key.response, top_k=key.top_k, at_ids=key.at_ids)
        version = scores.version
        if pinned is not None:  # the weights may have changed since we asked which they are
            _check_pin(server, version, pinned)
            version = str(pinned)
        answer = {
            "version": version,
            "logprobs": _base64(pack_floats(scores.logprobs)),
            "topk_ids": _base64(pack_ids(scores.topk_ids.ravel())),
            "topk_logprobs": _base64(pack_floats(scores.topk_logprobs.ravel())),
        }
        if scores.at_ids is not None:
            answer["at_ids"] = _base64(pack_floats(scores.at_ids.ravel()))
        # The key of the version that answered, should it be another than we were told.
        return answer, digest if version is None else key.digest_at(version)

    return await asked_once(transactions, digest_now, score, question=question, purpose="teacher", model=server.model)


def _check_pin(server: ModelServer, tag: str | None, pinned: int) -> None:
    """Refuse scores of other weights than the recipe's: under the pin's name they would be invented. An adapter that is
    named for the version is that version, whatever tag the server has.

    Raises:
        TeacherFailed: the server does not say what it serves.
        WrongVersion: it serves something else.
    """
    if server.asked_as == version_name(server.config.model, pinned):
        return
    if tag is None:
        raise TeacherFailed(
            f"unknown_version: the recipe pins version {pinned}, and {server.config.url} does not say what it serves "
            "(vLLM says it with VLLM_SERVER_DEV_MODE=1)"
        )
    if tag != str(pinned):
        raise WrongVersion(
            f"wrong_version: the recipe pins version {pinned}, and {server.config.url} serves {tag!r}; load it: "
            f"`hindstream weights serve --version {pinned} --url {server.config.url}`"
        )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
