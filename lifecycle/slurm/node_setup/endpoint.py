"""HTTP requests to services of this cluster."""

import http.client
import re
import urllib.error
import urllib.request

from node_setup.failure import SetupError
from node_setup.node import Node

LONGEST_ANSWER_BYTES = 64 << 20
SECONDS_PER_REQUEST = 10


def http_get(url: str) -> str:
    """Return the answer as text. The request never uses a proxy.

    Raises:
        SetupError: if the service does not answer, or refuses.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=SECONDS_PER_REQUEST) as response:
            answer: bytes = response.read(LONGEST_ANSWER_BYTES)
            return answer.decode(errors="replace")
    except urllib.error.HTTPError as error:
        raise SetupError(f"{url} answers {error.code} {error.reason}", "") from None
    except (OSError, http.client.HTTPException) as error:
        # URLError is an OSError that wraps another. A truncated answer is an HTTPException.
        raise SetupError(
            f"{url} does not answer: {getattr(error, 'reason', error)!r}", ""
        ) from None


def wait_for_metric(
    node: Node, url: str, pattern: str, *, unit: str, timeout_seconds: float
) -> str:
    """Wait for an answer with a line that begins with the regular expression, and return the answer.

    Raises:
        SetupError: if no such answer arrives in time.
    """

    def look() -> str:
        answer = http_get(url)
        if not re.search(f"^(?:{pattern})", answer, re.MULTILINE):
            raise SetupError(f"{url} has no metric {pattern}", "")
        return answer

    return node.host.wait_for(
        look,
        timeout_seconds=timeout_seconds,
        what=f"{unit} gives no metrics",
        remedy=f"see `journalctl --unit {unit}` and `curl {url}` on the node",
    )


def require_free_port(node: Node, port: int, what: str) -> None:
    """Raise SetupError, with the program's name, if one listens on this TCP port of the node's address."""
    listening = node.host.run(
        "ss", "--no-header", "--listening", "--tcp", "--numeric", "--processes", f"sport = :{port}"
    )
    ours = (node.facts.address, "0.0.0.0", "*", "[::]")
    for line in listening.splitlines():
        # State, two queues, local address and port, remote address and port, processes.
        fields = line.split()
        address = fields[3].rpartition(":")[0].partition("%")[0]
        if address in ours:
            raise SetupError(
                f"port {port}, for {what}, is taken: {' '.join(fields)}",
                "another exporter runs on this node, perhaps one that was set up by hand: find it with "
                "`docker ps` and `systemctl list-units`, stop and disable it; or set prometheus: false in "
                "the cluster file",
            )
