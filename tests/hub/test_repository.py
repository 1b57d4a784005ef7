"""A push is one commit, whatever the hub does meanwhile, and what may not be pushed is told before."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants

from hub_store import TOKEN, Fault, HubServer
from posttrain.errors import ConfigError, RunError
from posttrain.hub import repository
from posttrain.hub.package import Package
from posttrain.hub.repository import Pushed, Repository, Target

CARD = b"---\nlicense: mit\n---\n"
NAME = "owner/name"


@pytest.fixture
def package(tmp_path: Path) -> Package:
    """A card, a small file, and a large one of 1 MB."""
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(os.urandom(2**20))
    (tmp_path / "config.json").write_text("{}")
    files: dict[str, Path | bytes] = {"README.md": CARD, "config.json": tmp_path / "config.json"}
    return Package({**files, weights.name: weights}, ("*.safetensors", "adapter_config.json", "config.json"))


def push(package: Package, *, revision: str = "main", public: bool = False, seconds: float = 30) -> Pushed:
    there = Repository(Target(NAME, revision, public))
    there.create()
    return there.push(package, "a model", seconds)


def contents(package: Package) -> dict[str, bytes]:
    return {name: each if isinstance(each, bytes) else each.read_bytes() for name, each in package.files.items()}


def test_files_are_one_commit_in_a_private_repository(hub: HubServer, package: Package) -> None:
    pushed = push(package)
    assert hub.files(NAME) == contents(package)
    assert hub.titles(NAME) == ["a model"] and hub.repos[NAME].private
    assert (pushed.uploaded, pushed.there, pushed.tries) == (3, 0, 1)
    assert pushed.commit == hub.repos[NAME].branches["main"][-1]


def test_what_is_there_is_not_pushed_again(hub: HubServer, package: Package) -> None:
    first = push(package)
    again = push(package)
    assert (again.commit, again.uploaded, again.there) == (first.commit, 0, 3)
    assert hub.titles(NAME) == ["a model"] and hub.asked("PUT /upload") == 1


def test_only_what_changed_is_uploaded(hub: HubServer, package: Package, tmp_path: Path) -> None:
    push(package)
    (tmp_path / "config.json").write_text('{"a": 1}')
    pushed = push(package)
    assert (pushed.uploaded, pushed.there) == (1, 2)
    assert hub.files(NAME) == contents(package) and hub.asked("PUT /upload") == 1


def test_a_branch_is_made_and_main_stays_as_it_is(hub: HubServer, package: Package) -> None:
    push(package, revision="step-4")
    assert hub.files(NAME, "step-4") == contents(package) and hub.files(NAME) == {}


def test_files_of_another_model_are_removed_and_others_stay(hub: HubServer, package: Package) -> None:
    repo = hub.make(NAME)
    there = {"adapter_config.json": b"{}", "model-00001-of-00002.safetensors": b"x", "notes.txt": b"mine"}
    repo.commit("main", {name: (data, name.endswith(".safetensors")) for name, data in there.items()}, "earlier")
    pushed = push(package)
    assert sorted(pushed.removed) == ["adapter_config.json", "model-00001-of-00002.safetensors"]
    assert hub.files(NAME) == {**contents(package), "notes.txt": b"mine"}


PASSING = {
    "the repository is asked": r"GET /api/models/owner/name/revision/main",
    "the tree is asked": r"GET .*/tree/",
    "the card is checked": r"POST /api/validate-yaml",
    "ways to upload are asked": r"POST .*/preupload/",
    "places to upload are asked": r"POST .*/objects/batch",
    "a file is uploaded": r"PUT /upload/",
    "the upload is verified": r"POST /verify/",
    "files are committed": r"POST .*/commit/",
}


@pytest.mark.parametrize("what", [500, "cut"])
@pytest.mark.parametrize("when", PASSING)
def test_a_failure_that_passes_leaves_one_commit(hub: HubServer, package: Package, when: str, what: int | str) -> None:
    hub.faults.append(Fault(PASSING[when], what))
    push(package)
    assert hub.faults[0].times == 0
    assert hub.files(NAME) == contents(package) and hub.titles(NAME) == ["a model"]


@pytest.mark.parametrize("when", ["a file is uploaded", "files are committed"])
def test_an_answer_that_is_lost_after_the_work_was_done_does_not_double_it(
    hub: HubServer, package: Package, when: str
) -> None:
    hub.faults.append(Fault(PASSING[when], "lost"))
    pushed = push(package)
    assert hub.files(NAME) == contents(package) and hub.titles(NAME) == ["a model"]
    assert pushed.commit == hub.repos[NAME].branches["main"][-1]


@pytest.mark.parametrize("status", [409, 412, 429, 503])
def test_a_commit_that_is_refused_for_now_is_tried_again(hub: HubServer, package: Package, status: int) -> None:
    hub.faults.append(Fault(PASSING["files are committed"], status))
    assert push(package).tries == 2
    assert hub.titles(NAME) == ["a model"]


def test_a_branch_that_moves_meanwhile_is_looked_at_again(hub: HubServer, package: Package) -> None:
    """Somebody commits after the branch was read, so the hub refuses with 412; their file stays."""
    hub.make(NAME)
    there = Repository(Target(NAME, "main"))

    def commit_first() -> None:
        files = hub.repos[NAME].commits[hub.repos[NAME].branches["main"][-1]][0]
        hub.repos[NAME].commit("main", {**files, "notes.txt": (b"theirs", False)}, "theirs")

    hub.before_commit = commit_first
    assert there.push(package, "a model", 30).tries == 2
    assert hub.files(NAME) == {**contents(package), "notes.txt": b"theirs"}
    assert hub.titles(NAME) == ["theirs", "a model"]


def test_a_hub_that_says_how_long_to_wait_is_heeded(hub: HubServer, package: Package) -> None:
    hub.faults.append(Fault(PASSING["files are committed"], 429, wait=1.5))
    hub.make(NAME)
    push(package)
    refused, accepted = [at for request, at in hub.times if "/commit/" in request]
    assert accepted - refused >= 1.5


def test_a_hub_that_says_nothing_is_not_waited_for(
    hub: HubServer, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "ANSWER_SECONDS", 0.5)
    hub.faults.append(Fault(PASSING["files are committed"], "silent"))
    assert push(package).tries == 2
    first, second = [at for request, at in hub.times if "/commit/" in request]
    assert 0.5 <= second - first < 2.9
    assert hub.titles(NAME) == ["a model"]


def test_a_hub_that_fails_for_too_long_is_given_up(hub: HubServer, package: Package) -> None:
    hub.faults.append(Fault(PASSING["files are committed"], 500, times=10**6))
    with pytest.raises(
        RunError, match=r"owner/name at main has not got all files after \d+ attempts? in 1 s: .* 500"
    ) as caught:
        push(package, seconds=1)
    assert hub.files(NAME) == {} and TOKEN not in str(caught.value)


REFUSED: dict[str, tuple[Callable[[HubServer], object], str]] = {
    "401": (lambda hub: hub.faults.append(Fault("whoami", 401)), r"refuses the token in HF_TOKEN \(401\)"),
    "403": (lambda hub: setattr(hub, "read_only", True), r"may not write to owner/name \(403\)"),
    "a public repository": (lambda hub: hub.make(NAME, private=False), r"owner/name is public"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_refused_is_told_before_anything_is_sent(hub: HubServer, package: Package, why: str) -> None:
    prepare, message = REFUSED[why]
    prepare(hub)
    with pytest.raises(ConfigError, match=message) as caught:
        push(package)
    assert TOKEN not in str(caught.value)
    assert hub.asked("upload|commit/|branch") == 0


@pytest.mark.parametrize("status", [401, 403, 404, 400])
def test_a_commit_that_is_refused_for_good_is_not_repeated(hub: HubServer, package: Package, status: int) -> None:
    hub.faults.append(Fault(PASSING["files are committed"], status, times=10))
    with pytest.raises(ConfigError, match=str(status)) as caught:
        push(package)
    assert hub.asked("/commit/") == 1 and TOKEN not in str(caught.value)


def test_a_repository_that_became_public_gets_nothing_more(hub: HubServer, package: Package) -> None:
    there = Repository(Target(NAME, "step-2"))
    there.create()
    hub.repos[NAME].private = False
    with pytest.raises(ConfigError, match="is public"):
        there.push(package, "a model", 30)
    assert hub.asked("upload|commit/|branch") == 0


def test_a_public_repository_is_pushed_to_where_that_is_meant(hub: HubServer, package: Package) -> None:
    push(package, public=True)
    assert not hub.repos[NAME].private and hub.files(NAME) == contents(package)


def test_a_name_of_somebody_else_is_told_before_it_is_tried(hub: HubServer) -> None:
    with pytest.raises(ConfigError, match="can make none there: it is of owner; name a repository of owner or team"):
        Repository(Target("else/name", "main")).create()
    assert hub.asked("create") == 0


def test_without_a_token_or_offline_nothing_is_asked(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is set"):
        Repository(Target(NAME, "main"))
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ConfigError, match="set HF_TOKEN to a token"):
        Repository(Target(NAME, "main"))
    assert hub.requests == []


def test_an_answer_that_is_no_answer_is_tried_again_and_told(hub: HubServer, package: Package) -> None:
    hub.make(NAME)
    hub.faults.append(Fault(PASSING["ways to upload are asked"], 200, times=10**6))
    with pytest.raises(RunError, match="cannot be understood"):
        push(package, seconds=1)
