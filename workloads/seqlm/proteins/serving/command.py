"""Serve a model: ``seqlm serve [--model FOLDER]``; in the image, the command ``serve``.

Limits are environment variables (``settings.py``), because endpoints and pods configure containers with them.
"""

import argparse
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from seqlm.runs.model_names import short_training
from seqlm.training.command_line import STOPPED_BY_SIGNAL, USAGE_ERROR, importing, one_line_errors

from .settings import ServeSettings, check_folder, settings_text

MODEL_FOLDER = Path("/opt/ml/model")
"""Folder into which SageMaker puts the model."""
PORT = 8080
"""Port of SageMaker's requests."""


def main(arguments: Sequence[str] | None = None) -> None:
    # Process 1 of a container ignores SIGTERM by default, and loading may take minutes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED_BY_SIGNAL))
    # The text is read from the source of the settings, which is not needed to serve.
    is_help = bool({"-h", "--help"} & {*sys.argv})
    parser = argparse.ArgumentParser(
        prog="seqlm serve",
        description="Answer /ping and /invocations with a model.",
        epilog=settings_text() if is_help else "",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    model_help = f"model folder of a run; default {MODEL_FOLDER}"
    parser.add_argument("--model", type=Path, default=MODEL_FOLDER, help=model_help)
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 means all addresses"
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="name in the header Host that clients may use, such as that of a proxy, beside those of this "
        "machine; repeatable. With --host 0.0.0.0, all names are allowed unless some are given",
    )
    parser.add_argument("--port", type=int, default=PORT, help=f"port to listen on; default {PORT}")
    options = parser.parse_args(arguments)
    with one_line_errors():
        # Wrong options and missing packages are reported before the import of torch, which takes seconds.
        from .app import Server, Service
        from .heads import Hosts

        _check_free(options.host, options.port)
        settings = ServeSettings.of(os.environ)
        check_folder(options.model)
        if warning := short_training(str(options.model)):
            print(warning, file=sys.stderr)
        with importing():
            from .model import open_model

        model = open_model(options.model, settings)
    address = f"http://{options.host}:{options.port}/invocations"
    example = f"""curl -H "Content-Type: application/json" -d '{{"proteins": ["MKTAYIAKQR"]}}' {address}"""
    print(f"serving {options.model}: {model.answers}. Try:\n  {example}", file=sys.stderr)
    hosts = Hosts.of(options.host, options.allow_host)
    server = Server(Service(model, settings, hosts), host=options.host, port=options.port)
    server.run()
    if server.failure is not None:
        print(f"error: --model: {options.model}: {server.failure}", file=sys.stderr)
        sys.exit(USAGE_ERROR)


def _check_free(host: str, port: int) -> None:
    """Raise ValueError if another program listens on the port, before the model is loaded."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ValueError(
                f"--host, --port: cannot listen on {host}:{port}: {error.strerror}; stop the other program "
                f'or choose another port (make serve ARGS="--port {port + 1}")'
            ) from None
