"""The clients of `chaos.py`: they know what the answer must be, and keep books of what came.

An emulated backend writes the same words for the same prompt, so every byte of text can be checked
without trusting anything in between; requests differ in their prompts, so an answer that went to another
client is noticed.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from enum import StrEnum

import aiohttp
import orjson

from steersman.env.emulator.words import word
from steersman.traces.headers import EMULATED_INPUT_TOKENS, EMULATED_OUTPUT_TOKENS

MODEL = "llama-3.1-8b"
PATH = "/v1/chat/completions"
LEAVING_SHARE = 0.04
"""Of clients that do not wait for the end."""


class Ending(StrEnum):
    """How a request ended, as its client saw it."""

    OK = "ok"
    BROKEN = "broken"
    """It had begun, ended early, and said so."""
    LOST = "lost"
    """It had not begun: refused, or the connection broke."""
    LEFT = "left"
    """The client went away, as it meant to."""
    WRONG = "wrong"
    """Bytes that are not those of its answer, or an end that looks like one and is none."""


@dataclass
class Entry:
    """One request in the books."""

    session: str
    """Its name in the outcome log."""
    prompt_tokens: int
    output_tokens: int
    streaming: bool
    leaves_after_s: float | None
    sent_s: float = 0.0
    ended_s: float = 0.0
    ending: Ending = Ending.LOST
    problem: str = "never sent"
    replica: str = ""
    text: str = ""

    @property
    def expected(self) -> str:
        """The whole text of its answer."""
        return "".join(word(self.prompt_tokens, i) for i in range(self.output_tokens))


@dataclass
class Clients:
    """Sends requests at a steady rate, each on its own.

    Args:
        url: of the router.
        rate_rps: requests per second.
        seed: of what is asked.
    """

    url: str
    rate_rps: float
    seed: int
    entries: list[Entry] = field(default_factory=list)
    worst_lag_s: float = 0.0
    """Latest that a request was sent after its time: how starved of CPU everything is."""

    async def run(self, until_s: float) -> None:
        """Send until a time of the monotonic clock; returns when all have ended."""
        rng = random.Random(self.seed)
        asked: list[asyncio.Task[None]] = []
        timeout = aiohttp.ClientTimeout(total=120.0, sock_connect=5.0)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=1.0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            due_s = time.monotonic()
            while due_s < until_s:
                await asyncio.sleep(max(due_s - time.monotonic(), 0.0))
                self.worst_lag_s = max(self.worst_lag_s, time.monotonic() - due_s)
                entry = self._next(rng)
                self.entries.append(entry)
                asked.append(asyncio.create_task(self._ask(session, entry)))
                due_s += rng.expovariate(self.rate_rps)
            await asyncio.gather(*asked)

    def _next(self, rng: random.Random) -> Entry:
        number = len(self.entries)
        return Entry(
            session=f"chaos-{number}",
            prompt_tokens=64 + number * 37 % 1999,
            output_tokens=rng.randint(8, 80),
            streaming=rng.random() < 0.7,
            leaves_after_s=rng.uniform(0.2, 1.0) if rng.random() < LEAVING_SHARE else None,
        )

    async def _ask(self, session: aiohttp.ClientSession, entry: Entry) -> None:
        entry.sent_s = time.monotonic()
        try:
            async with asyncio.timeout(entry.leaves_after_s):
                await self._exchange(session, entry)
        except TimeoutError:
            if entry.leaves_after_s is not None:
                entry.ending, entry.problem = Ending.LEFT, ""
            else:
                self._cut(entry, "no end in 120 s")
        except (aiohttp.ClientError, OSError) as error:
            self._cut(entry, f"{type(error).__name__}: {error}")
        entry.ended_s = time.monotonic()

    def _cut(self, entry: Entry, problem: str) -> None:
        entry.problem = problem
        if not entry.text:
            entry.ending = Ending.LOST
        else:
            entry.ending = Ending.BROKEN if entry.expected.startswith(entry.text) else Ending.WRONG

    async def _exchange(self, session: aiohttp.ClientSession, entry: Entry) -> None:
        messages = [{"role": "user", "content": f"{entry.session}: write to me"}]
        body = {"model": MODEL, "messages": messages, "stream": entry.streaming}
        headers = {
            "x-session-id": entry.session,
            EMULATED_INPUT_TOKENS: str(entry.prompt_tokens),
            EMULATED_OUTPUT_TOKENS: str(entry.output_tokens),
        }
        async with session.post(self.url + PATH, json=body, headers=headers) as answer:
            entry.replica = answer.headers.get("x-steersman-replica", "")
            if answer.status != 200:
                entry.problem = f"{answer.status} {(await answer.read())[:200]!r}"
                return
            if entry.streaming:
                await self._read_stream(answer, entry)
            else:
                self._read_whole(await answer.read(), entry)

    def _read_whole(self, body: bytes, entry: Entry) -> None:
        try:
            entry.text = orjson.loads(body)["choices"][0]["message"]["content"]
        except (orjson.JSONDecodeError, KeyError, IndexError, TypeError):
            entry.ending, entry.problem = Ending.WRONG, f"no answer: {body[:200]!r}"
            return
        self._settle(entry)

    async def _read_stream(self, answer: aiohttp.ClientResponse, entry: Entry) -> None:
        async for line in answer.content:
            data = line.strip().removeprefix(b"data: ")
            if not data:
                continue
            if data == b"[DONE]":
                self._settle(entry)
                return
            try:
                event = orjson.loads(data)
                if "error" in event:
                    self._cut(entry, event["error"]["code"])
                    return
                entry.text += "".join(choice["delta"]["content"] for choice in event["choices"])
            except (orjson.JSONDecodeError, KeyError, TypeError):
                entry.ending, entry.problem = Ending.WRONG, f"no event: {line[:200]!r}"
                return
        entry.ending, entry.problem = Ending.WRONG, "it ended without saying so"

    def _settle(self, entry: Entry) -> None:
        right = entry.text == entry.expected
        entry.ending = Ending.OK if right else Ending.WRONG
        entry.problem = "" if right else f"{entry.text[-60:]!r} is not how it ends"
