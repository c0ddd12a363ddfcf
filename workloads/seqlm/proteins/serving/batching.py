"""Queue that combines the proteins of all waiting requests into packs for the model.

Whenever the model is free, it takes the waiting proteins, up to a pack, and does not wait for more. A single
request has no delay, and under load the packs fill. The requests give one protein each in turn, so that a
large request does not delay small ones.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

import numpy as np
import numpy.typing as npt

from seqlm.proteins.alphabet import encode

from .proteins import Answer, Problem

SPECIAL_TOKENS = 2
RATE_WEIGHT = 0.2
"""Weight of the newest pack in the running mean of the model's speed."""
LONGEST_RETRY_SECONDS = 60
RECHECK_SECONDS = 5.0
"""Seconds between trials of a failed model, which gets no requests from load balancers that use /ping."""

Tokens = npt.NDArray[np.uint8]
_TRIAL: Tokens = encode("ACDEFGHIKLMNPQRSTVWY")
log = logging.getLogger("uvicorn.error")


class Model(Protocol):
    """Interface of a model for the server."""

    tokens_per_pack: int
    """Default for the model's device."""

    def warm_up(self) -> None:
        """Prepare for fast calls; called once, from the thread that calls ``run``."""
        ...

    def run(self, proteins: Sequence[Tokens]) -> Sequence[Answer]:
        """Return answers in the order of the proteins; called from one thread, not the server's."""
        ...


@dataclass(eq=False)
class _Request:
    waiting: deque[tuple[int, Tokens]]
    answers: list[Answer | None]
    num_missing: int
    done: asyncio.Future[None]


class Batcher:
    """Queue of requests for the model."""

    def __init__(
        self, model: Model, *, tokens_per_pack: int, max_waiting_residues: int, timeout_seconds: float
    ) -> None:
        self._model = model
        self._tokens_per_pack = tokens_per_pack
        self._max_waiting = max_waiting_residues
        self._timeout = timeout_seconds
        self._requests: deque[_Request] = deque()
        self._there_is_work = asyncio.Event()
        # One thread, always the same: the server stays responsive, and CUDA's state belongs to a thread.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")
        self._residues_per_second: float | None = None
        self.waiting_residues = 0
        """Residues of proteins without an answer, including those in the model."""
        self.is_ready = False
        """True after the model is warmed up."""
        self.is_healthy = True
        """False after a failure of the model, until a request or a trial succeeds."""

    async def answer(self, proteins: Sequence[Tokens]) -> list[Answer]:
        """Return the answers, in the order of the proteins.

        Raises:
            Problem: 503 if the queue is full or the answer takes too long; 500 if the model fails.
        """
        residues = sum(map(len, proteins))
        self._check_room(residues)
        request = _Request(
            waiting=deque(enumerate(proteins)),
            answers=[None] * len(proteins),
            num_missing=len(proteins),
            done=asyncio.get_running_loop().create_future(),
        )
        self.waiting_residues += residues
        self._requests.append(request)
        self._there_is_work.set()
        try:
            async with asyncio.timeout(self._timeout):
                await request.done
        except TimeoutError:
            raise _busy(
                f"no answer in {self._timeout:g} s; send fewer or shorter proteins, or try again later",
                self._expected_seconds(self.waiting_residues),
            ) from None
        finally:
            # Also after the client has left, because no one would read the answers.
            self.waiting_residues -= sum(len(tokens) for _, tokens in request.waiting)
            request.waiting.clear()
        return [answer for answer in request.answers if answer is not None]

    async def run(self) -> None:
        """Warm the model up, then feed it until the server stops."""
        loop = asyncio.get_running_loop()
        started = time.monotonic()
        await loop.run_in_executor(self._thread, self._model.warm_up)
        log.info("the model is ready; warming up took %.1f s", time.monotonic() - started)
        self.is_ready = True
        while True:
            await self._work_or_recovery()
            taken = self._next_pack()
            if not taken:
                self._there_is_work.clear()
                continue
            tokens = [tokens for _, _, tokens in taken]
            started = time.monotonic()
            try:
                answers = await loop.run_in_executor(self._thread, self._model.run, tokens)
            except Exception:
                # These requests are answered with the error, and /ping reports a failure to the load
                # balancer.
                log.exception("the model failed on a pack of %d proteins", len(tokens))
                self._fail([request for request, _, _ in taken])
                # The cause may be this pack, for example too large for the memory, or the device.
                await self._try_model()
            else:
                self.is_healthy = True
                self._learn_speed(sum(map(len, tokens)), time.monotonic() - started)
                for (request, index, _), answer in zip(taken, answers, strict=True):
                    self._give(request, index, answer)
            finally:
                self.waiting_residues -= sum(map(len, tokens))

    async def _work_or_recovery(self) -> None:
        while not self._there_is_work.is_set():
            try:
                async with asyncio.timeout(None if self.is_healthy else RECHECK_SECONDS):
                    await self._there_is_work.wait()
            except TimeoutError:
                await self._try_model()

    async def _try_model(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._model.run, [_TRIAL])
        except Exception as error:
            log.error("the model also failed on a trial: %s", error)
            self.is_healthy = False
        else:
            self.is_healthy = True

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _next_pack(self) -> list[tuple[_Request, int, Tokens]]:
        """Return waiting proteins up to a pack, at least one; the first that does not fit ends the pack."""
        taken: list[tuple[_Request, int, Tokens]] = []
        room = self._tokens_per_pack
        while self._requests:
            request = self._requests[0]
            if not request.waiting:
                self._requests.popleft()
                continue
            index, tokens = request.waiting[0]
            room -= len(tokens) + SPECIAL_TOKENS
            if room < 0 and taken:
                break
            request.waiting.popleft()
            taken.append((request, index, tokens))
            self._requests.rotate(-1)
        return taken

    def _check_room(self, residues: int) -> None:
        expected = self._expected_seconds(self.waiting_residues + residues)
        too_many = self.waiting_residues + residues > self._max_waiting
        # A request that seems too slow by itself is tried, because the estimate comes from other proteins.
        too_slow = self.waiting_residues > 0 and expected > self._timeout
        if too_many or too_slow:
            waiting = f"{self.waiting_residues} residues are waiting already"
            raise _busy(f"{waiting}; try again later", self._expected_seconds(self.waiting_residues))

    def _expected_seconds(self, residues: int) -> float:
        return residues / self._residues_per_second if self._residues_per_second else 0.0

    def _learn_speed(self, residues: int, seconds: float) -> None:
        speed = residues / max(seconds, 1e-6)
        before = self._residues_per_second
        self._residues_per_second = speed if before is None else before + RATE_WEIGHT * (speed - before)

    @staticmethod
    def _give(request: _Request, index: int, answer: Answer) -> None:
        request.answers[index] = answer
        request.num_missing -= 1
        if not request.num_missing and not request.done.done():
            request.done.set_result(None)

    @staticmethod
    def _fail(requests: Sequence[_Request]) -> None:
        for request in requests:
            if not request.done.done():
                detail = "the model failed on this request; see the server's log"
                request.done.set_exception(Problem(HTTPStatus.INTERNAL_SERVER_ERROR, detail))


def _busy(detail: str, seconds: float) -> Problem:
    retry = min(LONGEST_RETRY_SECONDS, max(1, math.ceil(seconds)))
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, headers={"Retry-After": str(retry)})
