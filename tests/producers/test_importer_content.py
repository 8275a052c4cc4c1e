"""Text out of the shapes in which logs keep it; images by name or data; what a person wrote among machines' blocks."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from producers.importers.base import Unreadable
from producers.importers.content import arguments_of, content_text, image_name, spoken

NAMED = f"[image image/png sha256:{hashlib.sha256(b'QUJD').hexdigest()[:16]}]"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        ("null", "null"),
        ("", ""),
        (None, ""),
        ([], ""),
        (["a", {"type": "text", "text": "b"}, {"type": "input_text", "text": "c"}], "a\nb\nc"),
        ([{"type": "document", "source": {}}], "[document]"),
    ],
)
def test_the_text_of_a_message(content: Any, text: str) -> None:
    assert content_text(content, "`content`") == text


@pytest.mark.parametrize("content", [5, True, {"text": "a"}, [5], [{"text": 5}], [{"type": 5}]])
def test_other_shapes_are_refused_by_name(content: Any) -> None:
    with pytest.raises(Unreadable, match="`what`"):
        content_text(content, "`what`")


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("shot_1.png", "[image shot_1.png]"),
        ({"type": "image", "path": "a/b.png"}, "[image a/b.png]"),
        ({"type": "image_url", "image_url": {"url": "https://x/y.png"}}, "[image https://x/y.png]"),
        ({"type": "input_image", "image_url": "data:image/png;base64,QUJD"}, NAMED),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}, NAMED),
        ({"type": "image", "mimeType": "image/png", "data": "QUJD"}, NAMED),
        ({"type": "image"}, "[image]"),
        (5, "[image]"),
    ],
)
def test_images_by_name_or_by_data(image: Any, name: str) -> None:
    assert image_name(image) == name


def test_arguments_are_printed_once_or_not_at_all() -> None:
    assert arguments_of({"a": "é"}) == '{"a": "é"}'
    assert arguments_of('{"a":  1}') == '{"a":  1}'
    assert arguments_of('"{\\"a\\": 1}"') == '"{\\"a\\": 1}"'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello", "hello"),
        ("<r>x</r> hello <r>y</r>", "hello"),
        ("<r>x</r><s>y</s>", ""),
        ('<r at="1">x</r>\nhello', "hello"),
        ("what does <r>x</r> mean?", "what does <r>x</r> mean?"),
        ("<t>x</t> hello", "<t>x</t> hello"),
        ("hello </r>", "hello </r>"),
        ("<r>never closed", "<r>never closed"),
        ("<rest>x</rest> hello", "<rest>x</rest> hello"),
    ],
)
def test_what_a_person_wrote_among_blocks(text: str, said: str) -> None:
    assert spoken(text, ("r", "s")) == said


def test_many_blocks() -> None:
    assert spoken("<r>" * 20_000, ("r",)) == "<r>" * 20_000
    assert spoken("<r>x</r>\n" * 50_000 + "middle" + "\n<r>x</r>" * 50_000, ("r",)) == "middle"
