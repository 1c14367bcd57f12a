"""Token ids into text as they come: deltas that join to the whole, cut exactly at stop strings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

UNFINISHED = "\ufffd"  # what the beginning of a character of several tokens decodes to


def cut_at_stop(text: str, stops: Sequence[str], start: int = 0) -> tuple[str, str | None]:
    """The text before the first stop string in it (looked for from `start` on), and that string."""
    places = [(at, stop) for stop in stops if (at := text.find(stop, start)) >= 0]
    at, stop = min(places, key=lambda place: place[0], default=(len(text), None))
    return text[:at], stop


class TextReader:
    """Reads a response. `text` is what is known of it, `stop` the stop string that ended it, if any
    did.

    A token's text may depend on the tokens before it (spaces, characters of several tokens), so
    each is decoded behind those that the last one was.

    Args:
        decode: the student's.
        stops: strings that end the response; they are no part of it. The first in the text counts.
        silent: tokens that are no text: those that end a response.
        before: tokens of a text that the response goes on from.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stops: Sequence[str] = (),
        silent: Collection[int] = (),
        before: Sequence[int] = (),
    ) -> None:
        self.decode, self.stops, self.silent = decode, stops, silent
        self.text = ""
        self.stop: str | None = None
        self.ids = [*before]
        self.pieces: list[str] = []  # what each token added
        self._seen = 0  # tokens of the response that were read
        self._shown = 0  # characters of the text that `delta` has returned
        self._before = 0  # what is new is decoded behind this token
        self._at = len(before)  # the first token whose text is not known yet
        self._known = decode(before) if before else ""  # the text of ids[_before:_at]

    def read(self, token_ids: Sequence[int]) -> None:
        """Take in what is new of the response's tokens so far. What comes after a stop string is
        left out.
        """
        new, self._seen = token_ids[self._seen :], len(token_ids)
        for token in new:
            if self.stop is not None or token in self.silent:
                continue
            self.ids.append(token)
            behind = self.decode(self.ids[self._before :])
            if behind.endswith(UNFINISHED):
                self.pieces.append("")
                continue
            self._add(behind[len(self._known) :])
            self._before, self._at = self._at, len(self.ids)
            self._known = self.decode(self.ids[self._before :])

    def end(self) -> None:
        """Nothing follows: a character that was never finished is taken as it is."""
        if self.stop is None and self._at < len(self.ids):
            self.pieces.pop()
            self._add(self.decode(self.ids[self._before :])[len(self._known) :])
            self._before = self._at = len(self.ids)

    def _add(self, piece: str) -> None:
        start = max(0, len(self.text) - max(map(len, self.stops), default=0) + 1)
        self.pieces.append(piece)
        self.text, self.stop = cut_at_stop(self.text + piece, self.stops, start)

    def delta(self, final: bool = False) -> str:
        """What can be shown now and was not before; the rest might yet become a stop string, unless
        this is `final`.
        """
        end = len(self.text)
        if not final and self.stop is None:
            begun = (
                size
                for stop in self.stops
                for size in range(1, len(stop))
                if self.text.endswith(stop[:size])
            )
            end -= max(begun, default=0)
        before, self._shown = self._shown, max(self._shown, end)
        return self.text[before : self._shown]

    def count_kept(self) -> int:
        """How many tokens the text is made of: those that begin before its end."""
        length, count = 0, 0
        for piece in self.pieces:
            if length >= len(self.text) and piece:
                break
            length += len(piece)
            count += 1
        return count

    def count_shown(self) -> int:
        """How many tokens' texts `delta` has returned whole."""
        length, count = 0, 0
        for piece in self.pieces:
            length += len(piece)
            if length > self._shown:
                break
            count += 1
        return count
