"""The text of the demo: eight sentences in the public domain, in pairs of one meaning."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence: a short label (pairs share the letter), the text, and where it comes from."""

    label: str
    text: str
    source: str


SENTENCES = (
    Sentence(
        "a1",
        "It is a truth universally acknowledged, that a single man in possession of a good "
        "fortune, must be in want of a wife.",
        "Austen, Pride and Prejudice, 1813",
    ),
    Sentence(
        "a2",
        "Happiness in marriage is entirely a matter of chance.",
        "Austen, Pride and Prejudice, 1813",
    ),
    Sentence(
        "b1",
        "The ants are a people not strong, yet they prepare their meat in the summer.",
        "Proverbs 30:25, King James Bible, 1611",
    ),
    Sentence(
        "b2",
        "The ants were spending a fine winter's day drying grain collected in the summertime.",
        "Aesop, The Ants and the Grasshopper, translated by Townsend, 1867",
    ),
    Sentence(
        "c1",
        "They shall beat their swords into plowshares, and their spears into pruninghooks.",
        "Isaiah 2:4, King James Bible, 1611",
    ),
    Sentence(
        "c2",
        "Nation shall not lift up a sword against nation, neither shall they learn war any more.",
        "Micah 4:3, King James Bible, 1611",
    ),
    Sentence(
        "d1",
        "The heavens declare the glory of God; and the firmament sheweth his handywork.",
        "Psalm 19:1, King James Bible, 1611",
    ),
    Sentence(
        "d2",
        "When I consider thy heavens, the work of thy fingers, the moon and the stars, which thou "
        "hast ordained.",
        "Psalm 8:3, King James Bible, 1611",
    ),
)
