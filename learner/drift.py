"""Drift: what a policy has moved away from while it learned.

Two numbers beside every score: KL to the base model on the policy's own answers, and the log-likelihood of text
that nobody trained on. A score that rises while these run away was bought, not learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

UNTOUCHED_TEXT = (
    "The train left the station a little after nine, and the valley lay under a thin fog. Two farmers were talking "
    "about the price of wheat, and a girl counted the bridges as they passed. At noon the line turned east along "
    "the river, where the water was high from three days of rain. Nobody in the carriage expected to be on time, "
    "but the conductor, who had worked on this line for thirty years, said that they would reach the coast before "
    "dark. In the evening the sky cleared and the first lights of the harbour came into view."
)
"""Plain narrative English written for this purpose; it looks like nothing that the demo trains on."""


@dataclass(frozen=True, kw_only=True)
class Drift:
    """`kl_to_base`: mean over the policy's sampled answer tokens of log p_policy - log p_base (k1, Schulman 2020),
    nats a token. `text_before`, `text_after`: mean log-likelihood of the untouched text, nats a token."""

    kl_to_base: float
    text_before: float
    text_after: float


def measure_drift(base: Path, policy: Path, answers: Sequence[tuple[list[int], list[int]]]) -> Drift:
    """Compare two HuggingFace model directories on `answers` sampled from `policy`: (prompt_ids, response_ids).

    Raises:
        ValueError: no answers.
    """
    if not answers:
        raise ValueError("drift needs at least one sampled answer")
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    tokenizer = AutoTokenizer.from_pretrained(base)
    text_ids = list(tokenizer(UNTOUCHED_TEXT)["input_ids"])
    base_answers, base_text = _scores(base, answers, text_ids)
    policy_answers, policy_text = _scores(policy, answers, text_ids)
    return Drift(
        kl_to_base=float((policy_answers - base_answers).mean()),
        text_before=base_text,
        text_after=policy_text,
    )


@torch.inference_mode()
def _scores(
    path: Path, answers: Sequence[tuple[list[int], list[int]]], text_ids: list[int]
) -> tuple[torch.Tensor, float]:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, local_files_only=True)
    pieces = [_log_probs(model, prompt + response)[len(prompt) - 1 :] for prompt, response in answers]
    return torch.cat(pieces), float(_log_probs(model, text_ids).mean())


def _log_probs(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    """Log-prob of each id after the first, float32 [len(ids) - 1]."""
    logits_TV = model(torch.tensor([ids])).logits[0, :-1].float()
    targets_T = torch.tensor(ids[1:])
    return torch.log_softmax(logits_TV, dim=-1).gather(-1, targets_T[:, None])[:, 0]
