"""Text that comes in pieces: taking one costs what the piece costs, however much has come before.

`text += piece` on an attribute copies all of the text for each piece.
"""

from __future__ import annotations

from io import StringIO


class TextBuffer:
    """The pieces so far. Reading it (`str`) joins them: do that once it is whole, not per piece."""

    __slots__ = ("_pieces", "latest", "num_chars")

    def __init__(self, text: str = "") -> None:
        self._pieces = StringIO()
        self.latest = ""
        """The last piece."""
        self.num_chars = 0
        if text:
            self.add(text)

    def add(self, piece: str) -> None:
        self._pieces.write(piece)
        self.latest = piece
        self.num_chars += len(piece)

    def __str__(self) -> str:
        return self._pieces.getvalue()

    def __repr__(self) -> str:
        return repr(str(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextBuffer) and str(self) == str(other)

    __hash__ = None  # type: ignore[assignment]
