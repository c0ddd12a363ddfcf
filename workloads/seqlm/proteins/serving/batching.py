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
from typing import TYPE_CHECKING, NamedTuple

from seqlm.proteins.alphabet import encode

from .proteins import Answer, Problem, Tokens

if TYPE_CHECKING:  # the module of the model imports torch
    from .model import ServedModel

SPECIAL_TOKENS = 2
"""Tokens of a protein besides its residues: CLS and EOS."""
RATE_WEIGHT = 0.2
"""Weight of the newest pack in the running mean of the model's speed."""
SHORTEST_SECONDS = 1e-6
"""Lower limit of the duration of a pack, which divides."""
LONGEST_RETRY_SECONDS = 60
"""Largest value of the header Retry-After."""
RECHECK_SECONDS = 5.0
"""Seconds between trials of a failed model, which gets no requests from load balancers that use /ping."""

_TRIAL: Tokens = encode("ACDEFGHIKLMNPQRSTVWY")
"""Protein with which a failed model is tried."""
log = logging.getLogger("uvicorn.error")


@dataclass(eq=False)
class _Request:
    waiting: deque[tuple[int, Tokens]]
    """Proteins that the model has not got yet, each with its place in the request."""
    answers: list[Answer | None]
    """Answers in the order of the request; None until the model has computed them."""
    num_missing: int
    """Number of proteins without an answer."""
    done: asyncio.Future[None]
    """Future that is set when the last answer arrives, or the model fails."""


class _Taken(NamedTuple):
    """Protein in the pack of the model."""

    request: _Request
    place: int
    """Place of the protein in its request."""
    tokens: Tokens


class Batcher:
    """Queue of requests for the model."""

    def __init__(
        self,
        model: "ServedModel",
        *,
        tokens_per_pack: int,
        max_waiting_residues: int,
        timeout_seconds: float,
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
            raise self._late(residues) from None
        finally:
            # This also drops the proteins of a client that has left and will read no answer.
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
            proteins = [one.tokens for one in taken]
            residues = sum(map(len, proteins))
            started = time.monotonic()
            try:
                answers = await loop.run_in_executor(self._thread, self._model.run, proteins)
            except Exception:
                # These requests are answered with the error.
                log.exception("the model failed on a pack of %d proteins", len(proteins))
                self._fail([one.request for one in taken])
                # The cause may be this pack, for example too large for the memory, or the device. Failures of
                # the device are reported to the load balancer by /ping.
                await self._try_model()
            else:
                self.is_healthy = True
                self._learn_speed(residues, time.monotonic() - started)
                for one, answer in zip(taken, answers, strict=True):
                    self._give(one.request, one.place, answer)
            finally:
                self.waiting_residues -= residues

    async def _work_or_recovery(self) -> None:
        """Wait for work. Meanwhile, a failed model is tried again and again."""
        while not self._there_is_work.is_set():
            try:
                async with asyncio.timeout(None if self.is_healthy else RECHECK_SECONDS):
                    await self._there_is_work.wait()
            except TimeoutError:
                await self._try_model()

    async def _try_model(self) -> None:
        """Compute a short protein, to learn whether the model works."""
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._thread, self._model.run, [_TRIAL]
            )
        except Exception as error:
            log.error("the model also failed on a trial: %s", error)
            self.is_healthy = False
        else:
            self.is_healthy = True

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _next_pack(self) -> list[_Taken]:
        """Return waiting proteins up to a pack, at least one; the first that does not fit ends the pack."""
        taken: list[_Taken] = []
        room = self._tokens_per_pack
        while self._requests:
            request = self._requests[0]
            if not request.waiting:
                self._requests.popleft()
                continue
            place, tokens = request.waiting[0]
            room -= len(tokens) + SPECIAL_TOKENS
            if room < 0 and taken:
                break
            request.waiting.popleft()
            taken.append(_Taken(request, place, tokens))
            self._requests.rotate(-1)
        return taken

    def _check_room(self, residues: int) -> None:
        """Refuse a request of this many residues if the queue is full, or its answer would come too late."""
        expected = self._expected_seconds(self.waiting_residues + residues)
        too_many = self.waiting_residues + residues > self._max_waiting
        # A request that seems too slow by itself is tried, because the estimate comes from other proteins.
        too_slow = self.waiting_residues > 0 and expected > self._timeout
        if too_many or too_slow:
            waiting = f"{self.waiting_residues} residues are waiting already"
            raise _busy(
                f"{waiting}; try again later", self._expected_seconds(self.waiting_residues)
            )

    def _late(self, residues: int) -> Problem:
        """Return the problem of a request that got no answer in time.

        A request that takes longer than that by itself would be late again, so no time to retry is given.
        """
        late = f"no answer in {self._timeout:g} s"
        alone = self._expected_seconds(residues)
        if alone > self._timeout:
            return Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{late}, and this request alone takes about {alone:.0f} s; send fewer or shorter proteins",
            )
        return _busy(
            f"{late}; send fewer or shorter proteins, or try again later",
            self._expected_seconds(self.waiting_residues),
        )

    def _expected_seconds(self, residues: int) -> float:
        """Return the seconds that the model needs for residues; 0 if its speed is not known yet."""
        if not self._residues_per_second:
            return 0.0
        return residues / self._residues_per_second

    def _learn_speed(self, residues: int, seconds: float) -> None:
        """Add a pack to the running mean of the speed."""
        speed = residues / max(seconds, SHORTEST_SECONDS)
        before = speed if self._residues_per_second is None else self._residues_per_second
        self._residues_per_second = before + RATE_WEIGHT * (speed - before)

    @staticmethod
    def _give(request: _Request, place: int, answer: Answer) -> None:
        """Store an answer, and complete the request with its last one."""
        request.answers[place] = answer
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
    """Return 503 with the seconds after which the client may try again."""
    retry = min(LONGEST_RETRY_SECONDS, max(1, math.ceil(seconds)))
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, headers={"Retry-After": str(retry)})
