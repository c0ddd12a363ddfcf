"""Section ``network.proxy`` of a cluster file: HTTP proxy through which machines reach the internet."""

from typing import Annotated

from pydantic import Field

from config import text_forms as forms
from config.section import Section


class Proxy(Section):
    """HTTP proxy of the company, for everything but AWS's services and the cluster itself.

    Nodes, their container runtimes, users' sessions and jobs, pods of jobs, and functions in the VPC use it.
    AWS's services are reached through endpoints or a route.
    """

    url: Annotated[str, forms.field(forms.PROXY_URL, max_length=255)]
    """Address with its port. It has no password, because every user of a node can read it."""
    no_proxy: Annotated[
        list[Annotated[str, forms.field(forms.PROXY_EXCEPTION, max_length=255)]],
        Field(max_length=50),
    ] = Field(default=[])
    """Further hosts, and domains with a dot at their beginning, that are reached directly."""
