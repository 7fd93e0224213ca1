"""A small bitmap font, so that pictures can be labelled without a drawing library."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GLYPH_HEIGHT = 8
GLYPH_WIDTH = 6
"""Pixels of a character, with the gap to the next."""

_COLUMNS = {
    " ": "0000000000", "%": "2313086462", "(": "001c224100", ")": "0041221c00", "+": "08083e0808",
    ",": "0050300000", "-": "0808080808", ".": "0060600000", "/": "2010080402", ":": "0036360000",
    "0": "3e5149453e", "1": "00427f4000", "2": "4261514946", "3": "2141454b31", "4": "1814127f10",
    "5": "2745454539", "6": "3c4a494930", "7": "0171090503", "8": "3649494936", "9": "064949291e",
    "=": "1414141414", "A": "7e1111117e", "B": "7f49494936", "C": "3e41414122", "D": "7f4141221c",
    "E": "7f49494941", "F": "7f09090901", "G": "3e4149497a", "H": "7f0808087f", "I": "00417f4100",
    "J": "2040413f01", "K": "7f08142241", "L": "7f40404040", "M": "7f020c027f", "N": "7f0408107f",
    "O": "3e4141413e", "P": "7f09090906", "Q": "3e4151215e", "R": "7f09192946", "S": "4649494931",
    "T": "01017f0101", "U": "3f4040403f", "V": "1f2040201f", "W": "3f4038403f", "X": "6314081463",
    "Y": "0708700807", "Z": "6151494543",
}  # fmt: skip
"""Five columns of seven pixels each as hexadecimal bytes, the lowest bit on top."""


def text_pixels(text: str) -> NDArray[np.bool_]:
    """(GLYPH_HEIGHT, GLYPH_WIDTH * len(text)): where there is ink. Lower case is drawn as upper case;
    characters that the font lacks are left blank."""
    pixels = np.zeros((GLYPH_HEIGHT, GLYPH_WIDTH * len(text)), dtype=np.bool_)
    for position, character in enumerate(text.upper()):
        columns = np.frombuffer(bytes.fromhex(_COLUMNS.get(character, _COLUMNS[" "])), dtype=np.uint8)
        bits = np.unpackbits(columns[None, :], axis=0, bitorder="little").astype(np.bool_)
        left = position * GLYPH_WIDTH
        pixels[:, left : left + 5] = bits
    return pixels
