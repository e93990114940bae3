"""Checkpoints on the Hugging Face Hub: one quick question first, then the files, with one sentence per
failure.

The usual routes are kept (HF_HUB_OFFLINE, HF_ENDPOINT, HF_HOME, the saved token). What is added is the
order: a single request without retries finds out whether the model exists, may be read and can be reached at
all; config.json is judged; only then are weights fetched.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_ess.errors import BadInput
from hf_ess.loading.checkpoints import BIN, BIN_INDEX, LOOKED_FOR, SAFE, SAFE_INDEX
from hf_ess.loading.configs import ADAPTER, CONFIG, first_line

_NETWORK_ERRORS = {"TransportError", "NetworkError", "TimeoutException", "ConnectionError", "Timeout"}


@dataclass
class Repository:
    """A model repository at one commit.

    Attributes:
        id: owner/name.
        asked: the revision that was asked for; None is the main branch.
        commit: its commit hash.
        offline: files come from the cache alone (asked for, or no network).
        folder: the local snapshot of the commit, known after the first file.
        note: a warning, where the cache had to stand in for the Hub.
    """

    id: str
    asked: str | None
    commit: str | None
    offline: bool = False
    folder: Path | None = None
    note: str | None = None

    @property
    def where(self) -> dict[str, Any]:
        """Arguments that make transformers read the same commit."""
        return {"revision": self.commit, "local_files_only": self.offline}

    def file(self, name: str) -> Path | None:
        """The local path of one file, fetched where needed; None where the repository has no such file.

        Raises:
            BadInput: it could not be fetched.
        """
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError

        # Asked for by its branch, the first file makes the cache remember the commit, which later works offline.
        revision = self.commit if self.folder is not None and self.commit is not None else self.asked
        try:
            path = Path(hf_hub_download(self.id, name, revision=revision, local_files_only=self.offline))
        except EntryNotFoundError as error:  # not there, or (offline) not in the cache
            if self.offline or "Local" not in type(error).__name__:
                return None
            raise BadInput(explain(error, self.id, revision)) from error
        except Exception as error:
            raise BadInput(explain(error, self.id, revision)) from error
        self.folder = path.parent
        for _ in Path(name).parts[1:]:
            self.folder = self.folder.parent
        return path


def open_repository(repo_id: str, revision: str | None = None, file: str = CONFIG) -> Repository:
    """Find a model on the Hub by one of its files, or in the local cache where the Hub may not or cannot be
    reached.

    Raises:
        BadInput: mistyped, missing, private, gated, or neither reachable nor cached.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, HFValidationError

    failure: Exception | None = None
    commit = note = None
    try:
        offline = constants.is_offline_mode()
        if not offline:
            url = hf_hub_url(repo_id, file, revision=revision)
            commit = get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT).commit_hash
    except EntryNotFoundError as error:  # the model exists and has no config.json (GGUF, adapter)
        response = getattr(error, "response", None)
        commit = response.headers.get(constants.HUGGINGFACE_HEADER_X_REPO_COMMIT) if response is not None else None
    except HFValidationError as error:
        raise BadInput(explain(error, repo_id, revision)) from error
    except Exception as error:
        if not (is_network_error(error) or _server_failed(error)):
            raise BadInput(explain(error, repo_id, revision)) from error
        offline, failure = True, error
    if offline:
        cached = try_to_load_from_cache(repo_id, file, revision=revision)
        if not isinstance(cached, str):
            raise BadInput(_not_cached(repo_id, revision, failure)) from failure
        commit = Path(cached).relative_to(constants.HF_HUB_CACHE).parts[2]  # models--ID/snapshots/COMMIT/FILE
    if failure is not None:
        note = f"the Hub cannot be reached ({first_line(failure)}): the copy of {repo_id} in the cache is used"
    return Repository(repo_id, revision, commit, offline, note=note)


def fetch_config(repository: Repository) -> Path:
    """Fetch config.json, or the adapter's, and return the snapshot folder.

    Raises:
        BadInput: the repository has no config.json.
    """
    if repository.file(CONFIG) is None and repository.file(ADAPTER) is None:
        raise BadInput(
            f"{repository.id} has no config.json, so it is not a transformers checkpoint; for a GGUF "
            "repository name the file with --gguf-file"
        )
    assert repository.folder is not None
    return repository.folder


def fetch_weights(repository: Repository) -> None:
    """Fetch the weight files, safetensors before .bin, and generation_config.json.

    Raises:
        BadInput: there are none, or they could not be fetched.
    """
    repository.file("generation_config.json")
    for single, index in ((SAFE, SAFE_INDEX), (BIN, BIN_INDEX)):
        if repository.file(single) is not None:
            return
        if (path := repository.file(index)) is None:
            continue
        try:
            shards = sorted(set(json.loads(path.read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError):
            return  # the checks of the folder say what is wrong with the index
        for shard in shards:
            repository.file(shard)
        return
    cached = "in the cached copy of " if repository.offline else "in "
    raise BadInput(f"there are no weights {cached}{repository.id} (looked for {LOOKED_FOR})")


def is_network_error(error: BaseException) -> bool:
    """Whether the Hub was not reached (the HTTP library differs between versions, the names do not)."""
    return any(kind.__name__ in _NETWORK_ERRORS for kind in type(error).__mro__)


def _server_failed(error: BaseException) -> bool:
    return getattr(getattr(error, "response", None), "status_code", 0) >= 500


def _not_cached(repo_id: str, revision: str | None, failure: Exception | None) -> str:
    from huggingface_hub import constants

    what = f"{repo_id}{f' at revision {revision}' if revision else ''}"
    if failure is None:
        return (
            f"{what} is not a folder here nor in the local cache ({constants.HF_HUB_CACHE}), and "
            "HF_HUB_OFFLINE forbids asking the Hub"
        )
    return (
        f"{what} is not a folder here nor in the local cache, and the Hub at {constants.ENDPOINT} cannot be "
        f"reached ({first_line(failure)})"
    )


def explain(error: BaseException, repo_id: str, revision: str | None = None, kind: str = "model") -> str:
    """One sentence for an error of huggingface_hub."""
    from huggingface_hub import constants
    from huggingface_hub import errors as hub

    if isinstance(error, hub.GatedRepoError):
        return (
            f"{repo_id} is gated: ask for access at {constants.ENDPOINT}/{repo_id}, then log in with 'hf "
            "auth login' (or set HF_TOKEN)"
        )
    if isinstance(error, hub.RepositoryNotFoundError):
        return (
            f"there is no folder {repo_id} here and no such {kind} at {constants.ENDPOINT} (mistyped, or "
            "private: then log in with 'hf auth login')"
        )
    if isinstance(error, hub.RevisionNotFoundError):
        return f"{repo_id} has no revision {revision}"
    if isinstance(error, hub.HFValidationError):
        return f"{repo_id!r} is neither an existing folder nor a valid Hub id (owner/name)"
    if isinstance(error, hub.LocalEntryNotFoundError) or is_network_error(error):
        return f"the Hub at {constants.ENDPOINT} cannot be reached for {repo_id} ({first_line(error)})"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return f"the Hub refuses access to {repo_id} (status {status}): check the token ('hf auth login', HF_TOKEN)"
    if status is not None:
        return f"the Hub answered {status} for {repo_id}: {first_line(error)}"
    return f"{repo_id} could not be fetched from the Hub: {first_line(error)}"
