"""Everyday questions, in two sets that share no subject: one to talk about, one that is never trained."""

from __future__ import annotations

import random

_FORMS: dict[str, tuple[str, ...]] = {
    "What is {}?": (
        "a volcano",
        "a rainbow",
        "gravity",
        "photosynthesis",
        "a library",
        "an earthquake",
        "a mortgage",
        "electricity",
        "a compass",
        "a desert",
        "yoga",
        "a budget",
        "a passport",
        "a glacier",
        "chess",
        "a vitamin",
        "a recipe",
        "a telescope",
        "a museum",
        "recycling",
        "a hurricane",
        "a calendar",
        "a savings account",
        "a tornado",
        "jazz",
        "a waterfall",
        "a novel",
        "insurance",
        "a battery",
        "an orchestra",
        "a first aid kit",
        "a peninsula",
        "oxygen",
        "a sundial",
        "a thermometer",
        "a magnet",
    ),
    "Why is {} important?": (
        "sleep",
        "drinking water",
        "exercise",
        "breakfast",
        "reading",
        "honesty",
        "washing hands",
        "friendship",
        "sunlight",
        "a seat belt",
        "clean air",
        "saving money",
        "teamwork",
        "patience",
        "history",
        "music",
        "brushing teeth",
        "fibre in food",
        "privacy",
        "kindness",
        "fresh fruit",
        "play for children",
        "good posture",
        "listening",
        "a healthy heart",
        "protein",
    ),
    "How do I {}?": (
        "boil an egg",
        "remove a coffee stain",
        "fall asleep faster",
        "make pancakes",
        "learn a new language",
        "clean a window",
        "save money",
        "write a letter",
        "grow tomatoes",
        "wash a wool sweater",
        "make green tea",
        "tie a tie",
        "keep bread fresh",
        "start running",
        "train a puppy",
        "sharpen a knife",
        "water a cactus",
        "cook rice",
        "pack a suitcase",
        "fix a flat tire",
        "peel garlic",
        "plan a picnic",
        "clean a keyboard",
        "store potatoes",
        "make a paper airplane",
        "ride a bicycle",
        "iron a shirt",
        "bake a potato",
    ),
    "What do {} eat?": (
        "rabbits",
        "owls",
        "horses",
        "pandas",
        "dolphins",
        "bees",
        "goldfish",
        "bears",
        "penguins",
        "frogs",
        "giraffes",
        "hedgehogs",
        "squirrels",
        "parrots",
        "sharks",
        "cows",
    ),
    "Where can I find {}?": (
        "fresh bread",
        "a good dentist",
        "used books",
        "a quiet place to study",
        "cheap flights",
        "free music lessons",
        "a bus timetable",
        "a second-hand bicycle",
        "healthy recipes",
        "a local park",
    ),
    "Why do {}?": (
        "leaves change colour",
        "cats purr",
        "birds migrate",
        "people yawn",
        "dogs wag their tails",
        "we dream",
        "onions make us cry",
        "ships float",
        "stars twinkle",
        "bees make honey",
        "we get hiccups",
        "fish live in water",
        "people laugh",
        "clocks have twelve hours",
        "bridges need steel",
        "babies cry",
    ),
}

_HELD_OUT_EVERY = 3
"""Every third subject of each form is never trained: 42 of 132 questions."""


def _split(held_out: bool) -> list[str]:
    return [
        form.format(subject)
        for form, subjects in _FORMS.items()
        for place, subject in enumerate(subjects)
        if (place % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1) is held_out
    ]


TRAINING_QUESTIONS: list[str] = _split(held_out=False)
HELD_OUT_QUESTIONS: list[str] = _split(held_out=True)


class QuestionStream:
    """Training questions without end: each pass over the set in a new order drawn from `seed`."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._queue: list[str] = []

    def next(self) -> str:
        """The next question."""
        if not self._queue:
            self._queue = list(TRAINING_QUESTIONS)
            self._random.shuffle(self._queue)
        return self._queue.pop()
