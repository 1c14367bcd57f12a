"""Which of several servers with one model gets a prompt: the one that read most of it before, unless it is too busy.

As in SGLang's cache-aware router (Zheng et al. 2024): a server's prefix cache answers a prompt that goes on from one that
it has seen, and a tree's prompts all do.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import EngineError

BLOCK = 16  # tokens that are looked up together, as vLLM's cache does
REMEMBERED = 1 << 16  # blocks; the ones that were not asked for longest go first
SLACK = 8  # requests that the best server may have under way beyond twice those of the least busy one


@dataclass(slots=True)
class Server:
    """One address. `busy` counts its requests under way, `served` those it answered, `losses` how often it went away;
    `refusal` is why it was not taken back when it answered again."""

    url: str
    up: bool = True
    busy: int = 0
    served: int = 0
    losses: int = 0
    refusal: str = ""


class Routes:
    """The servers, and what beginnings of prompts each has read. Not thread-safe: it lives on one event loop."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.servers = [Server(url) for url in urls]
        self._read: OrderedDict[int, Server] = OrderedDict()

    def up(self) -> list[Server]:
        """The servers that answer. Raises EngineError where none does."""
        found = [server for server in self.servers if server.up]
        if not found:
            raise EngineError(f"none of the {len(self.servers)} vLLM servers of engine.vllm.base_url answers")
        return found

    def choose(self, prompt_ids: Sequence[int]) -> Server:
        """The server for a prompt, which counts as read there from now on.

        The one that read the longest beginning, where that is half of the prompt or more: a system prompt alone, which all
        have read, is no reason to send everything to one server. Else, or where that one has too much to do, the least busy.
        """
        servers = self.up()
        least = min(servers, key=lambda server: (server.busy, server.served))
        if len(self.servers) == 1:
            return least
        keys, key = [], 0
        for end in range(BLOCK, len(prompt_ids) + 1, BLOCK):
            key = hash((key, *prompt_ids[end - BLOCK : end]))
            keys.append(key)
        chosen = least
        for blocks in range(len(keys), 0, -1):
            known = self._read.get(keys[blocks - 1])
            if known is not None and known.up:
                if 2 * BLOCK * blocks >= len(prompt_ids) and known.busy <= 2 * least.busy + SLACK:
                    chosen = known
                break
        for key in keys:
            # The first to read a beginning keeps it: the longer ones are what tells prompts apart.
            owner = self._read.get(key)
            if owner is None or not owner.up:
                self._read[key] = chosen
            self._read.move_to_end(key)
        while len(self._read) > REMEMBERED:
            self._read.popitem(last=False)
        return chosen
