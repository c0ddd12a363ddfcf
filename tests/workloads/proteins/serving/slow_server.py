"""Server in its own process, for signals: ``slow_server.py PORT SECONDS``, with the seconds per pack."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from seqlm.proteins.serving.app import Server, Service
from seqlm.proteins.serving.proteins import Tokens
from seqlm.proteins.serving.settings import ServeSettings

if TYPE_CHECKING:
    from seqlm.proteins.serving.model import ServedModel


class SlowModel:
    """Model with what the server uses. It does not import torch, so that the process starts at once."""

    tokens_per_pack = 16_384

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def warm_up(self) -> None:
        time.sleep(self._seconds)

    def run(self, proteins: Sequence[Tokens]) -> list[dict[str, Any]]:
        time.sleep(self._seconds)
        return [{"length": len(tokens)} for tokens in proteins]


if __name__ == "__main__":
    port = int(sys.argv[1])
    model = cast("ServedModel", SlowModel(float(sys.argv[2])))
    service = Service(model, ServeSettings.of(os.environ))
    Server(service, host="127.0.0.1", port=port).run()
