"""AWS by botocore's Stubber, answering by operation instead of in a fixed order.

Every call's parameters and every answer are validated against botocore's model, types and required members by
botocore itself, enumerations and ranges here. A request without an answer fails the test.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import boto3
import botocore.session
from botocore import xform_name
from botocore.hooks import BaseEventHooks, HierarchicalEmitter
from botocore.loaders import create_loader
from botocore.model import OperationModel
from botocore.stub import Stubber

MODELS = create_loader()
"""Shared, so that each service's model is read once per test process."""
ACCOUNT = "123456789012"
Parameters = dict[str, Any]
Answer = Callable[[Parameters], dict[str, Any]]


class Refusal(Exception):
    """The error with which an answer refuses a call."""

    def __init__(self, code: str, message: str = "refused", status: int = 400) -> None:
        super().__init__(code)
        self.code = code
        self.message = message
        self.status = status


class AnsweringAws:
    """A session's clients, stubbed. ``calls`` lists what was called, as ("ec2", "DescribeVpcs")."""

    def __init__(self, region: str) -> None:
        self.session = copy.copy(_session(region))
        self.answers: dict[tuple[str, str], Answer] = {}
        self.calls: list[tuple[str, str]] = []
        self._stubbers: list[Stubber] = []
        self.session.client = self._client  # type: ignore[method-assign,assignment]

    def answer(
        self, service: str, operation: str, answer: dict[str, Any] | Answer | Refusal
    ) -> None:
        """Set or change what an operation answers: a response, a function of the parameters, or a refusal."""
        if isinstance(answer, Refusal):
            self.answers[service, operation] = _refusing(answer)
        elif callable(answer):
            self.answers[service, operation] = answer
        else:
            self.answers[service, operation] = lambda parameters: answer

    def _client(self, service: str, **options: Any) -> Any:
        client = _client_with_own_handlers(self.session.region_name, service, options)
        stubber = Stubber(client)
        stubber.activate()
        self._stubbers.append(stubber)

        pages = SecondPages()

        def queue_answer(params: Parameters, model: OperationModel, **_: Any) -> None:
            _check_values(params, model.input_shape, model.name)
            self.calls.append((service, model.name))
            name = xform_name(model.name)
            assert (service, model.name) in self.answers, (
                f"nobody answers {service} {model.name} {params}"
            )
            try:
                second = pages.pop(name, params)
                response = second or self.answers[service, model.name](dict(params))
            except Refusal as refusal:
                stubber.add_client_error(
                    name, refusal.code, refusal.message, http_status_code=refusal.status
                )
            else:
                _check_values(response, model.output_shape, model.name)
                if second is None and client.can_paginate(name):
                    response = pages.split(
                        name, client.get_paginator(name)._pagination_cfg, response
                    )
                stubber.add_response(name, response, dict(params))

        # The first event of a call; at the next one the Stubber looks at its queue.
        client.meta.events.register("provide-client-params.*.*", queue_answer)
        return client


@cache
def _session(region: str) -> boto3.Session:
    core = botocore.session.get_session()
    core.register_component("data_loader", MODELS)
    return boto3.Session(
        aws_access_key_id="AKIAEXAMPLE",
        aws_secret_access_key="example",
        region_name=region,
        botocore_session=core,
    )


@cache
def _shared_client(region: str, service: str, options: tuple[tuple[str, Any], ...]) -> Any:
    """A client that is only copied, because creating one takes 10 ms."""
    return _session(region).client(service, **dict(options))  # type: ignore[call-overload]


def _client_with_own_handlers(region: str, service: str, options: dict[str, Any]) -> Any:
    shared = _shared_client(region, service, tuple(sorted(options.items())))
    client = object.__new__(type(shared))  # copy.copy does not work with its __getattr__
    client.__dict__.update(shared.__dict__, meta=copy.copy(shared.meta))
    client.meta.events = OwnEvents(shared.meta.events)
    return client


class OwnEvents(HierarchicalEmitter):
    """Handlers of one client, called before those of the client that it is a copy of."""

    def __init__(self, shared: BaseEventHooks) -> None:
        super().__init__()
        self._shared = shared

    def emit(self, event_name: str, **arguments: Any) -> list[Any]:
        return [*super().emit(event_name, **arguments), *self._shared.emit(event_name, **arguments)]

    def emit_until_response(self, event_name: str, **arguments: Any) -> Any:
        handler, response = super().emit_until_response(event_name, **arguments)
        return (
            (handler, response)
            if response is not None
            else self._shared.emit_until_response(event_name, **arguments)
        )


class SecondPages:
    """Second halves of answers: every list comes in two pages, so that code must read both."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, Any]] = {}

    def split(
        self, operation: str, paging: dict[str, Any], response: dict[str, Any]
    ) -> dict[str, Any]:
        """The first page, with a token for the second one.

        Answers that have a token already, or their list inside another structure, stay whole.
        """
        results, output_tokens = (
            [value] if isinstance(value, str) else value
            for value in (paging["result_key"], paging["output_token"])
        )
        is_nested = not all(key.isidentifier() for key in results)
        is_paged = paging.get("more_results") in response or any(
            token in response for token in output_tokens
        )
        if is_nested or is_paged:
            return response
        first = dict(response)
        second = dict(response)
        for key in [key for key in results if len(response.get(key, [])) > 1]:
            half = (len(response[key]) + 1) // 2
            first[key] = response[key][:half]
            second[key] = response[key][half:]
        for key in [key for key in results if len(response.get(key, [])) == 1]:
            second[key] = []
        token = f"page-{len(self._waiting)}-of-{operation}"
        self._waiting[token] = second | (
            {paging["more_results"]: False} if "more_results" in paging else {}
        )
        more = {paging["more_results"]: True} if "more_results" in paging else {}
        return first | more | dict.fromkeys(output_tokens, token)

    def pop(self, operation: str, parameters: Parameters) -> dict[str, Any] | None:
        """The page that the parameters ask for; None if they ask for no second one."""
        tokens = [
            value
            for value in parameters.values()
            if isinstance(value, str) and value in self._waiting
        ]
        assert not tokens or tokens[0].endswith(operation)
        return self._waiting.pop(tokens[0]) if tokens else None


def _refusing(refusal: Refusal) -> Answer:
    def answer(parameters: Parameters) -> dict[str, Any]:
        raise refusal

    return answer


def _check_values(value: Any, shape: Any, path: str) -> None:
    """Check what botocore's validator omits: enumerations, and maxima of numbers and lengths."""
    if shape is None:
        return
    if shape.type_name == "structure" and isinstance(value, dict):
        for key, member in value.items():
            if key in shape.members:
                _check_values(member, shape.members[key], f"{path}.{key}")
    elif shape.type_name == "list" and isinstance(value, list):
        for item in value:
            _check_values(item, shape.member, f"{path}[]")
    elif isinstance(value, str) and getattr(shape, "enum", None):
        assert value in shape.enum, f"{path}: {value} is none of {shape.enum}"
    size = len(value) if isinstance(value, str | list) else value
    largest = shape.metadata.get("max")
    if largest is not None and isinstance(size, int | float) and not isinstance(size, bool):
        assert size <= largest, f"{path}: {size} is above {largest}"
