"""A repository on a Hugging Face hub: check it before work begins, and push files to it as one commit.

A push is repeated while the hub fails. It begins by comparing what is there, so that nothing is sent twice.
"""

import hashlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_delay

from posttrain.base.http import PassingError, pause
from posttrain.base.text import clipped, counted
from posttrain.errors import ConfigError, RunError, ServerError
from posttrain.hub.answers import described_error
from posttrain.hub.package import Package

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo, RepoFile

TOKEN = "HF_TOKEN"
"""The environment variable with the token."""
ANSWER_SECONDS = 120.0
"""How long a connection may be silent; huggingface_hub itself would wait for ever."""
_CHECK_SECONDS = 30.0

T = TypeVar("T")


@dataclass(frozen=True)
class Target:
    """Where to push: `revision` is a branch."""

    repo: str
    revision: str
    public: bool = False

    def __str__(self) -> str:
        return f"{self.repo} at {self.revision}"


@dataclass(frozen=True)
class Pushed:
    """What is on the hub now.

    Attributes:
        commit: the commit that has the files.
        uploaded: files in that commit that were not there; 0 if everything was there already.
        there: files that were there.
        removed: files of an earlier model that the commit removed.
        tries: how often it was tried.
    """

    commit: str
    uploaded: int
    there: int
    removed: tuple[str, ...]
    tries: int = 1


class Repository:
    """The repository of a target, with the token of the environment."""

    def __init__(self, target: Target) -> None:
        """Contact nothing yet; ConfigError without a token, or if huggingface_hub was told to stay offline."""
        token = os.environ.get(TOKEN, "").strip()
        if not token:
            raise ConfigError(f"set {TOKEN} to a token that may write to {target.repo}; nothing was pushed")
        # Read when huggingface_hub is imported. Xet is another way to upload, by code that the tests do not reach.
        os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
        from huggingface_hub import HfApi, constants
        from huggingface_hub.utils import disable_progress_bars

        if constants.HF_HUB_OFFLINE:
            raise ConfigError(f"HF_HUB_OFFLINE is set, so nothing can be pushed to {target.repo}; unset it")
        if not sys.stderr.isatty():
            disable_progress_bars()
        self.target = target
        self._api = HfApi(
            endpoint=os.environ.get("HF_ENDPOINT"),
            token=token,
            library_name="posttrain-toolkit",
            library_version=version("posttrain-toolkit"),
        )

    @property
    def endpoint(self) -> str:
        """The hub's address."""
        return self._api.endpoint

    def check(self) -> bool:
        """Whether the repository exists; nothing is changed.

        Raises:
            ConfigError: the token is refused or may not write there, or the repository is public and need not be.
            ServerError: the hub cannot be reached.
        """
        return self._before_work(self._check)

    def create(self) -> None:
        """Make the repository unless it exists; errors as `check`."""
        if self.check():
            return

        def create() -> None:
            self._api.create_repo(self.target.repo, private=not self.target.public, exist_ok=True)
            self._require_visibility(self._api.model_info(self.target.repo))

        self._before_work(create)

    def licence_of(self, model: str) -> str | None:
        """The licence that another model's card names, if it can be seen."""
        from huggingface_hub.errors import HfHubHTTPError

        def ask() -> str | None:
            try:
                card = self._api.model_info(model).card_data
            except HfHubHTTPError as error:
                if error.response.status_code in (401, 403, 404):
                    return None
                raise
            return None if card is None else card.to_dict().get("license")

        return self._before_work(ask)

    def push(self, package: Package, message: str, retry_seconds: float) -> Pushed:
        """Make the files of `package` those of the branch, in one commit, and compare what is there afterwards.

        Args:
            message: the commit's.
            retry_seconds: how long to repeat what fails for a reason that may pass.

        Raises:
            ConfigError: the hub refuses the token, the repository or the files.
            RunError: the hub failed for too long.
        """
        tries = 0

        def once() -> Pushed:
            nonlocal tries
            tries += 1
            return self._told(lambda: self._push(package, message, tries))

        try:
            return _repeated(once, retry_seconds)
        except PassingError as error:
            raise RunError(
                f"{self.target} has not got all files after {counted(tries, 'attempt')} in {retry_seconds:g} s: {error}"
            ) from None

    def _check(self) -> bool:
        from huggingface_hub.errors import RepositoryNotFoundError

        user = self._api.whoami()
        try:
            found = self._api.model_info(self.target.repo)
        except RepositoryNotFoundError:
            self._require_owner(user)
            return False
        self._require_visibility(found)
        self._api.auth_check(self.target.repo, write=True)
        return True

    def _require_owner(self, user: Mapping[str, Any]) -> None:
        if self.target.repo.partition("/")[0] not in _owners(user):
            raise ConfigError(
                f"there is no repository {self.target.repo}, and the token in {TOKEN} can make none there: it is of "
                f"{clipped(str(user.get('name')))}; name a repository of {' or '.join(map(clipped, _owners(user)))}"
            )

    def _require_visibility(self, found: "ModelInfo") -> None:
        if not found.private and not self.target.public:
            raise ConfigError(
                f"{self.target.repo} is public, so everybody would see what is pushed; say that this is meant "
                "(--public, or run.push.public: true), make it private, or name another repository"
            )

    def _push(self, package: Package, message: str, tries: int) -> Pushed:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        head = self._head()
        there = self._files(head)
        missing = [name for name, content in package.files.items() if not _is_there(there.get(name), content)]
        stale = tuple(name for name in there if name not in package.files and package.owns(name))
        kept = len(package.files) - len(missing)
        if not missing and not stale:
            return Pushed(head, 0, kept, (), tries)
        additions = [CommitOperationAdd(name, _readable(package.files[name])) for name in missing]
        deletions = [CommitOperationDelete(name, is_folder=False) for name in stale]
        made = self._api.create_commit(
            self.target.repo,
            [*additions, *deletions],
            commit_message=message,
            revision=self.target.revision,
            parent_commit=head,
        )
        now = self._files(made.oid)
        wrong = [name for name, content in package.files.items() if not _is_there(now.get(name), content)]
        if wrong:
            raise PassingError(f"after the commit, the hub has not got {wrong[0]} as it is here")
        return Pushed(made.oid, len(missing), kept, stale, tries)

    def _head(self) -> str:
        """The newest commit of the branch, which is made if it does not exist."""
        from huggingface_hub.errors import RevisionNotFoundError

        repo, revision = self.target.repo, self.target.revision
        try:
            found = self._api.model_info(repo, revision=revision)
        except RevisionNotFoundError:
            self._require_visibility(self._api.model_info(repo))
            self._api.create_branch(repo, branch=revision, exist_ok=True)
            found = self._api.model_info(repo, revision=revision)
        self._require_visibility(found)
        return str(found.sha)

    def _files(self, commit: str) -> "dict[str, RepoFile]":
        from huggingface_hub import RepoFile

        entries = self._api.list_repo_tree(self.target.repo, recursive=True, revision=commit)
        return {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}

    def _before_work(self, ask: Callable[[], T]) -> T:
        """Ask a question whose refusal is told before work begins."""
        try:
            return _repeated(lambda: self._told(ask), _CHECK_SECONDS)
        except PassingError as error:
            raise ServerError(f"the hub at {self.endpoint} cannot be asked about {self.target.repo}: {error}") from None

    def _told(self, ask: Callable[[], T]) -> T:
        """What `ask` returns; its errors as ours."""
        from huggingface_hub import get_session

        get_session().timeout = ANSWER_SECONDS
        try:
            return ask()
        except Exception as error:
            described = described_error(error, self.target.repo, TOKEN)
            if described is None:
                raise
            raise described from None


def _owners(user: Mapping[str, Any]) -> list[str]:
    """The names under which a token may make repositories."""
    return [str(each.get("name")) for each in (user, *(user.get("orgs") or ()))]


def _repeated(work: Callable[[], T], seconds: float) -> T:
    """What `work` returns, tried again after each PassingError for so long; the last one is raised."""

    def wait(state: RetryCallState) -> float:
        """Shorten the pause so that the last try comes when the time is over."""
        return max(0.0, min(pause(state), state.start_time + seconds - time.monotonic()))

    return Retrying(
        retry=retry_if_exception_type(PassingError), stop=stop_after_delay(seconds), wait=wait, reraise=True
    )(work)


def _readable(content: Path | bytes) -> str | bytes:
    return content if isinstance(content, bytes) else str(content)


def _is_there(remote: "RepoFile | None", content: Path | bytes) -> bool:
    """Whether the hub's file has this content: large ones are known by SHA-256, others by git's hash of a blob."""
    size = len(content) if isinstance(content, bytes) else content.stat().st_size
    if remote is None or remote.size != size:
        return False
    if remote.lfs is not None:
        return remote.lfs.sha256 == _hash(content, "sha256", b"")
    return remote.blob_id == _hash(content, "sha1", f"blob {size}\0".encode())


def _hash(content: Path | bytes, name: str, prefix: bytes) -> str:
    digest = hashlib.new(name, prefix, usedforsecurity=False)
    if isinstance(content, bytes):
        digest.update(content)
        return digest.hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, lambda: digest).hexdigest()
