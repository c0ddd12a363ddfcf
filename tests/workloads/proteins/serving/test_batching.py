"""Packs combine proteins of many requests; full queues and failures of the model get an answer."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from seqlm.proteins.serving.proteins import Answer, Tokens
from seqlm.proteins.serving.settings import ServeSettings
from tests.workloads.proteins.serving.served import CountingModel, Reply, Served, serving

PATIENCE = 120.0


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def held(model: CountingModel, served: Served, pool: ThreadPoolExecutor) -> Future[Reply]:
    """Request in the model, which is held."""
    model.gate.clear()
    first = pool.submit(served.invoke, {"proteins": ["M"]})
    assert model.entered.acquire(timeout=PATIENCE)
    return first


def test_waiting_requests_share_packs_in_turn() -> None:
    model = CountingModel()
    settings = ServeSettings(tokens_per_pack=64)
    with serving(model, settings) as served, ThreadPoolExecutor(8) as pool:
        first = held(model, served, pool)
        large = pool.submit(served.invoke, {"proteins": ["M" * 10] * 10})
        eventually(lambda: served.service.batcher.waiting_residues == 101)
        small = [pool.submit(served.invoke, {"proteins": ["M" * (11 + n)]}) for n in range(2)]
        eventually(lambda: served.service.batcher.waiting_residues == 124)
        model.gate.set()
        replies = [future.result(PATIENCE) for future in (first, large, *small)]
    assert [reply.status for reply in replies] == [200] * 4
    assert [len(reply.json["predictions"]) for reply in replies] == [1, 10, 1, 1]
    assert replies[2].json["predictions"][0]["label"] == "of 11"
    # With CLS and EOS these are 12 + 13 + 14 + 12 + 12 tokens. The next protein would be too many.
    assert sorted(model.packs[1]) == [10, 10, 10, 11, 12] and sum(map(len, model.packs)) == 13
    assert served.service.batcher.waiting_residues == 0


def test_a_protein_longer_than_a_pack_is_computed_alone() -> None:
    model = CountingModel()
    with serving(model, ServeSettings(tokens_per_pack=64)) as served:
        reply = served.invoke({"proteins": ["M" * 5, "M" * 200, "M" * 6]})
    assert [p["label"] for p in reply.json["predictions"]] == ["of 5", "of 200", "of 6"]
    assert model.packs == [[5], [200], [6]]


def test_a_full_queue_answers_with_a_time_to_retry() -> None:
    model = CountingModel()
    settings = ServeSettings(max_waiting_residues=100, max_residues=100)
    with serving(model, settings) as served, ThreadPoolExecutor(8) as pool:
        first = held(model, served, pool)
        second = pool.submit(served.invoke, {"proteins": ["M" * 90]})
        eventually(lambda: served.service.batcher.waiting_residues == 91)
        refused = served.invoke({"proteins": ["M" * 10]})
        assert refused.status == 503 and 1 <= int(refused.headers["retry-after"]) <= 60
        assert "91 residues are waiting already" in refused.json["detail"]
        assert served.send("GET", "/ping").status == 200, "busy is healthy"
        model.gate.set()
        assert first.result(PATIENCE).status == second.result(PATIENCE).status == 200
        assert served.invoke({"proteins": ["M" * 100]}).status == 200


def test_an_answer_that_takes_too_long_is_503_and_is_dropped() -> None:
    model = CountingModel()
    with serving(model, ServeSettings(timeout_seconds=1)) as served, ThreadPoolExecutor(8) as pool:
        first = held(model, served, pool)
        second = pool.submit(served.invoke, {"proteins": ["MK"]})
        assert first.result(PATIENCE).status == second.result(PATIENCE).status == 503
        assert "no answer in 1 s" in second.result().json["detail"]
        model.gate.set()
        eventually(lambda: served.service.batcher.waiting_residues == 0)
    assert model.packs == [[1]], "no client waits for the second"


def test_a_request_that_is_too_slow_by_itself_gets_no_time_to_retry() -> None:
    """A repetition would keep the model busy for nothing."""

    class Slow(CountingModel):
        def run(self, proteins: Sequence[Tokens]) -> list[Answer]:
            time.sleep(0.05)
            return super().run(proteins)

    with serving(Slow(), ServeSettings(timeout_seconds=1, tokens_per_pack=16)) as served:
        assert served.invoke({"proteins": ["M" * 10]}).status == 200
        reply = served.invoke({"proteins": ["M" * 10] * 100})
    assert reply.status == 503 and "retry-after" not in reply.headers
    assert "this request alone takes about" in reply.json["detail"]


def test_requests_of_clients_that_left_are_not_computed() -> None:
    model = CountingModel()
    with serving(model, ServeSettings()) as served, ThreadPoolExecutor(8) as pool:
        first = held(model, served, pool)
        body = b'{"proteins": ["MKT"]}'
        head = "POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", served.port)) as leaving:
            leaving.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            eventually(lambda: served.service.batcher.waiting_residues == 4)
        eventually(lambda: served.service.batcher.waiting_residues == 1)
        model.gate.set()
        assert first.result(PATIENCE).status == 200
    assert model.packs == [[1]]


def test_a_model_that_fails_is_unhealthy_until_it_works_again_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("seqlm.proteins.serving.batching.RECHECK_SECONDS", 0.05)
    model = CountingModel()
    with serving(model, ServeSettings()) as served:
        model.fails = True
        reply = served.invoke({"proteins": ["M"]})
        assert reply.status == 500 and "this device" not in reply.body.decode(), (
            "details are for the log"
        )
        eventually(lambda: served.send("GET", "/ping").status == 503)
        model.fails = False
        # An unhealthy server gets no requests.
        eventually(lambda: served.send("GET", "/ping").status == 200)
        assert served.invoke({"proteins": ["M"]}).status == 200


def test_a_failing_pack_does_not_make_the_server_unhealthy() -> None:
    model = CountingModel()
    model.fails_from = 100
    with serving(model, ServeSettings()) as served:
        assert served.invoke({"proteins": ["M" * 100]}).status == 500
        assert served.invoke({"proteins": ["M" * 99]}).status == 200
        assert served.send("GET", "/ping").status == 200
    assert model.packs == [[100], [20], [99]]


def test_requests_are_refused_until_the_model_is_warm() -> None:
    model = CountingModel()
    model.warm.clear()
    with serving(model, ServeSettings(), is_ready=False) as served:
        for reply in (served.send("GET", "/ping"), served.invoke({"proteins": ["MKT"]})):
            assert reply.status == 503 and "retry-after" in reply.headers
            assert "the model is loading" in reply.json["detail"]
        model.warm.set()
        eventually(lambda: served.send("GET", "/ping").status == 200)
        assert served.invoke({"proteins": ["MKT"]}).status == 200
    assert model.packs == [[3]], "what came too early was refused, not kept"


def test_a_model_that_cannot_warm_up_stops_the_server() -> None:
    model = CountingModel()
    model.warm.clear()
    model.is_broken = True
    with serving(model, ServeSettings(), is_ready=False) as served:
        assert served.send("GET", "/ping").status == 503
        model.warm.set()
        eventually(lambda: served.server.failure is not None)
        assert served.server.should_exit and "not finite" in str(served.server.failure)
