"""Files of models and data sets from the Hugging Face hub."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import hf_hub_download

from workloads.training.data.remotes import FetchError

_HUB_FILE = re.compile(r"hf://datasets/(?P<id>[\w.-]+/[\w.-]+)(@(?P<revision>[\w.-]+))?/(?P<file>.+)")


def fetch_table(location: str, downloads: Path) -> Path:
    """Bring a file of a data set from the hub: ``hf://datasets/<owner>/<name>@<revision>/<file>``.

    Raises:
        FetchError: (a ValueError) if it cannot be had.
    """
    found = _HUB_FILE.fullmatch(location)
    if found is None:
        raise FetchError(
            f"chat.table: got {location}; a file of the hub is hf://datasets/<owner>/<name>@<revision>/<file>"
        )
    repository, revision, file = found["id"], found["revision"], found["file"]
    folder = hub_folder(downloads, f"datasets/{repository}", revision)
    with from_hub(f"chat.table: {location}"):
        return Path(
            hf_hub_download(repository, file, repo_type="dataset", revision=revision, local_dir=folder)
        )


def hub_folder(downloads: Path, repository: str, revision: str | None) -> Path:
    """Return a folder for each revision, so that no revision overwrites another."""
    return downloads / "hub" / f"{repository.replace('/', '--')}@{revision or 'main'}"


@contextmanager
def from_hub(what: str) -> Iterator[None]:
    """Turn any error of the hub's client into FetchError; ``what`` is the field and its value."""
    try:
        yield
    except Exception as error:  # of whichever library the hub's client speaks HTTP by
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FetchError(
            f"{what} could not be had from the hub: {reason}. Check the name, the network and, for a model "
            "with a licence to accept, HF_TOKEN (on a cluster the file huggingface/token: docs/causal-lm.md);"
            " then start the same command again, which resumes the download"
        ) from error
