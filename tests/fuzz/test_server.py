"""The server answers as its OpenAPI description says, and no request is its fault.

Requests are those of the description and violations of it (schemathesis), mutations of good ones, random
structures, bytes that are not quite HTTP, and noise.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
from collections.abc import Callable, Iterator, Sequence

import pytest

from seqlm.proteins.serving.settings import ServeSettings
from tests.fuzz.server_requests import framed, noise, request
from tests.fuzz.soak import is_constant
from tests.workloads.proteins.serving.served import CSV, CountingModel, Served, serving

EXAMPLES = 40
"""Examples per round."""
REQUESTS = 100
"""Requests per round."""
CONNECTIONS = 25
"""Connections per round."""
MAX_BODY_BYTES = 20_000
MAX_PROTEINS = 20
MAX_RESIDUES = 100
REFUSALS = {400, 404, 405, 406, 413, 415, 421, 422}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    limits = ServeSettings(
        max_body_bytes=MAX_BODY_BYTES, max_proteins=MAX_PROTEINS, max_residues=MAX_RESIDUES
    )
    with serving(CountingModel(), limits) as found:
        yield found


def is_right(body: object) -> bool:
    """Whether a body by the description is; its generator takes private characters for printable ones."""
    proteins = body["proteins"] if isinstance(body, dict) else []
    return all(
        str(protein.get("id")).isprintable() for protein in proteins if isinstance(protein, dict)
    )


@pytest.mark.long
def test_answers_are_as_the_description_says(
    served: Served, rounds: Callable[[int], Iterator[random.Random]]
) -> None:
    import schemathesis  # it takes two seconds, which make test spares
    from hypothesis import HealthCheck, Phase, given, seed, settings, strategies
    from schemathesis import Case, GenerationMode
    from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

    sequences = strategies.from_regex(rf"[A-Za-z]{{1,{MAX_RESIDUES}}}", fullmatch=True)
    # A first row in other letters than the second is refused, because it may be a header.
    rows = strategies.lists(sequences, min_size=1, max_size=MAX_PROTEINS).filter(
        lambda row: len({sequence.isupper() for sequence in row[:2]}) == 1
    )
    schemathesis.openapi.media_type(CSV, rows.map(lambda row: "\n".join(row).encode()))
    described = schemathesis.openapi.from_url(f"http://127.0.0.1:{served.port}/openapi.json")
    for path in ("/ping", "/openapi.json"):
        described[path]["GET"].Case().call_and_validate()
    invoke = described["/invocations"]["POST"]
    seen: set[tuple[GenerationMode, int]] = set()

    def check(case: Case, mode: GenerationMode) -> None:
        reply = case.call_and_validate(
            excluded_checks=[positive_data_acceptance, negative_data_rejection]
        )
        if case.media_type == CSV:
            allowed = {200}  # made here, and right in either mode
        elif mode == GenerationMode.POSITIVE:
            allowed = {200 if is_right(case.body) else 422}
        else:
            allowed = REFUSALS
        assert reply.status_code in allowed, (mode, case.body, reply.content)
        seen.add((mode, reply.status_code))

    for chance in rounds(2):
        for mode in GenerationMode:
            seeded = seed(chance.getrandbits(32))
            limited = settings(
                max_examples=EXAMPLES,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            given_case = given(
                case=invoke.as_strategy(generation_mode=mode), mode=strategies.just(mode)
            )
            seeded(limited(given_case(check)))()
    assert seen >= {(GenerationMode.POSITIVE, 200), (GenerationMode.NEGATIVE, 400)}


@pytest.mark.long
def test_no_request_is_the_server_s_fault(
    served: Served, rounds: Callable[[int], Iterator[random.Random]]
) -> None:
    seen: set[int] = set()
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    number = 0
    for rng in (rng for rng in rounds(15) for _ in range(REQUESTS)):
        number += 1
        method, path, body, headers = request(rng)
        try:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            answer = reply.read()
        except ConnectionError:
            # Beyond twice the limit the server does not read on, and its answer may be lost.
            assert len(body) > 2 * MAX_BODY_BYTES
            connection.close()
            continue
        assert reply.status == 200 or reply.status in REFUSALS, (
            number,
            method,
            path,
            body[:200],
            headers,
            answer,
        )
        if reply.status != 200 and method != "HEAD":
            assert json.loads(answer)["status"] == reply.status
        seen.add(reply.status)
    connection.close()
    assert number < 15 * REQUESTS or seen >= {200, 400, 413, 415, 422}, (
        "the fuzz reaches every kind of answer"
    )
    assert served.service.batcher.waiting_residues == 0 and served.service.batcher.is_healthy


@pytest.mark.long
def test_malformed_http_harms_no_other_request(
    served: Served, rounds: Callable[[int], Iterator[random.Random]]
) -> None:
    seen: set[bytes] = set()
    number = 0
    for rng in (rng for rng in rounds(10) for _ in range(CONNECTIONS)):
        number += 1
        made = [
            rng.choice([framed, framed, framed, noise])(rng) for _ in range(rng.choice([1, 1, 2]))
        ]
        answer = b""
        # The server may have closed already, or wait for more.
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", served.port), timeout=0.1) as client,
        ):
            client.sendall(b"".join(made))
            if rng.random() < 0.3:
                client.shutdown(socket.SHUT_WR)
            while part := client.recv(65_536):
                answer += part
        statuses = {reply[:3] for reply in answer.split(b"HTTP/1.1 ")[1:]}
        assert all(status[:1] in (b"1", b"2", b"4") for status in statuses), (made, answer)
        seen |= statuses
    assert number < 10 * CONNECTIONS or seen >= {
        b"100",
        b"200",
        b"400",
        b"404",
        b"405",
        b"406",
        b"415",
    }
    assert served.invoke({"proteins": ["MKT"]}).status == 200


@pytest.mark.parametrize(
    ("figures", "verdict"),
    [
        ([300 + 0.1 * (second % 7) for second in range(600)], True),
        ([200 + min(second, 100) for second in range(600)], True),
        ([300 + 0.05 * second for second in range(600)], False),
        ([300 if second < 500 else 400 for second in range(600)], False),
    ],
)
def test_the_soak_sees_memory_that_grows(figures: Sequence[float], verdict: bool) -> None:
    assert is_constant(figures) is verdict
