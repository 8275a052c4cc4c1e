"""Named detectors: where in a text something stands that a form or a checksum gives away. Pure.

Every pattern takes time that grows with the text alone: what repeats is bounded, possessive, or ends where the next
thing begins. What looks alike and is not (a build number like an IPv4 address) is replaced too; a detector that is too
eager costs a turn, one that is too shy a secret.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator

import regex  # type: ignore[import-untyped]

Span = tuple[int, int]
Detector = Callable[[str, float], Iterator[Span]]
"""The places in a text, in order and apart, found within so many seconds; raises TimeoutError beyond them."""

_EMAIL = regex.compile(
    r"""[^\s@<>()\[\]{},;:"'\\/=|][^\s@<>()\[\]{},;:"\\/=|]{0,63}+@(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,8}[^\W\d_]{2,24}""",
)
_PHONE = regex.compile(
    r"(?<![\w+])(?:\+|00)[1-9](?:[ ./-]?\(?\d\)?){6,14}(?!\w)"
    r"|(?<![\w.-])(?:\(\d{3}\)[ ]?|\d{3}[ .-])\d{3}[ .-]\d{4}(?!\w)"
)
_CARD = regex.compile(r"(?<!\d)\d(?:[ -]?\d){12,400}+")
_IBAN = regex.compile(r"(?<![^\W_])[A-Za-z]{2}\d{2}(?:[ ]?[A-Za-z0-9]){11,40}+")
_IPV4 = regex.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?!\.?\d)")
_IPV6 = regex.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?:(?:\.\d{1,3}){3})?(?![\w:])")
_API_KEY = regex.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"sk-[A-Za-z0-9_-]{16,}+|[rs]k_(?:live|test)_[A-Za-z0-9]{16,}+|hs_[A-Za-z0-9_-]{40,}+|hf_[A-Za-z0-9]{20,}+"
    r"|gh[oprsu]_[A-Za-z0-9]{20,}+|github_pat_[A-Za-z0-9_]{20,}+|glpat-[A-Za-z0-9_-]{16,}+"
    r"|xox[abeprs]-[A-Za-z0-9-]{10,}+|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{35}"
    r"|[Bb]earer[ ]+[A-Za-z0-9._~+/-]{20,}+=*"
    r")"
)
_JWT = regex.compile(r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]*+")
_PRIVATE_KEY = regex.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}?PRIVATE KEY(?: BLOCK)?-----"
    r".*?(?:-----END [A-Z0-9 ]{0,40}?PRIVATE KEY(?: BLOCK)?-----|\Z)",
    regex.DOTALL,
)

_IBAN_LENGTHS = range(15, 35)
_CARD_DIGITS = range(13, 20)


def matches(pattern: regex.Pattern[str], text: str, within_s: float) -> Iterator[Span]:
    """Every match that is not empty. The interpreter is free for other threads meanwhile."""
    for found in pattern.finditer(text, timeout=within_s, concurrent=True):
        if found.end() > found.start():
            yield found.span()


def _plainly(pattern: regex.Pattern[str], sign: str) -> Detector:
    """Each match is one; a text without `sign` has none."""

    def find(text: str, within_s: float) -> Iterator[Span]:
        return matches(pattern, text, within_s) if sign in text else iter(())

    return find


def _checked(pattern: regex.Pattern[str], check: Callable[[str], bool]) -> Detector:
    """Matches that are what they look like."""

    def find(text: str, within_s: float) -> Iterator[Span]:
        return (span for span in matches(pattern, text, within_s) if check(text[slice(*span)]))

    return find


def _cards(text: str, within_s: float) -> Iterator[Span]:
    """Groups of digits that are together a card number, whatever number stands before or behind them."""
    for start, end in matches(_CARD, text, within_s):
        groups = [(start + m.start(), start + m.end()) for m in regex.finditer(r"\d+", text[start:end])]
        first = 0
        while first < len(groups):
            last = _card_from(text, groups, first)
            if last is not None:
                yield groups[first][0], groups[last][1]
                first = last
            first += 1


def _card_from(text: str, groups: list[Span], first: int) -> int | None:
    digits, found = "", None
    for last in range(first, len(groups)):
        digits += text[slice(*groups[last])]
        if len(digits) >= _CARD_DIGITS.stop:
            break
        if len(digits) in _CARD_DIGITS and luhn(digits):
            found = last
    return found


def luhn(digits: str) -> bool:
    """Whether the last digit is the check digit of the others (ISO/IEC 7812-1)."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + place % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def _ibans(text: str, within_s: float) -> Iterator[Span]:
    """The longest beginning of a match whose checksum holds: the words behind it look like more of it."""
    for start, end in matches(_IBAN, text, within_s):
        for stop in range(end, start, -1):
            plain = text[start:stop].replace(" ", "")
            whole = stop == len(text) or not text[stop].isalnum()
            if whole and not text[stop - 1].isspace() and len(plain) in _IBAN_LENGTHS and mod97(plain):
                yield start, stop
                break


def mod97(iban: str) -> bool:
    """Whether the check digits of an IBAN hold (ISO 7064 MOD 97-10, as ISO 13616 uses it)."""
    moved = iban[4:] + iban[:4]
    return int("".join(str(int(letter, 36)) for letter in moved)) % 97 == 1


def _is_ipv4(text: str) -> bool:
    return all(int(part) < 256 for part in text.split("."))


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return any(letter.isalnum() for letter in text)


DETECTORS: dict[str, Detector] = {
    "private_key": _plainly(_PRIVATE_KEY, "-----BEGIN "),
    "jwt": _plainly(_JWT, "eyJ"),
    "api_key": lambda text, within_s: matches(_API_KEY, text, within_s),
    "email": _plainly(_EMAIL, "@"),
    "iban": _ibans,
    "credit_card": _cards,
    "phone": lambda text, within_s: matches(_PHONE, text, within_s),
    "ipv4": _checked(_IPV4, _is_ipv4),
    "ipv6": _checked(_IPV6, _is_ipv6),
}
"""By name, in the order in which they are applied: what may hold another thing comes first."""
