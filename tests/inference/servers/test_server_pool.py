"""Several servers are one engine: nothing is lost or doubled when one fails, and none is used with other weights."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from inference.servers.contract_server import ContractServer, contract_server
from inference.servers.server_engines import HOT, KINDS, expected, opened, requests
from inference.servers.table_model import TableModel, write_table
from posttrain.errors import ConfigError, ModelError, ServerError
from posttrain.inference.engine import Completion, FinishedCompletions, GenerationRequest, Key, Sampling
from posttrain.inference.servers.probe import require_scores
from posttrain.inference.servers.wire import ServerOutageError

Serve = Callable[..., ContractServer]

both = pytest.mark.parametrize("kind", KINDS)


def completions_asked(server: ContractServer) -> list[tuple[int, ...]]:
    """The prompts of the test's own requests, which are the only ones of three tokens."""
    prompts = (
        body.get("input_ids") or body["prompt"][0]
        for path, body in server.asked
        if path.endswith(("generate", "completions"))
    )
    return [tuple(prompt) for prompt in prompts if len(prompt) == 3]


def same(found: dict[Key, Completion], wanted: dict[Key, Completion]) -> bool:
    return list(found) == list(wanted) and all(
        found[key].token_ids == wanted[key].token_ids
        and found[key].stop_reason == wanted[key].stop_reason
        and found[key].logprobs == pytest.approx(wanted[key].logprobs)
        for key in wanted
    )


@both
def test_completions_and_scores_are_the_models(kind: str, serve: Serve, model: Path, tmp_path: Path) -> None:
    asked = requests(3, 4)
    with opened([serve(kind)], model, tmp_path) as engine:
        found = engine.complete(asked, HOT)
        assert same(found, expected(model, asked, HOT))
        assert {completion.stop_reason.value for completion in found.values()} == {"end", "length"}
        assert engine.score([5, 9, 10, 11]) == pytest.approx(TableModel(model).score([5, 9, 10, 11]))
        assert engine.repeats


@both
def test_loaded_weights_answer_from_then_on(
    kind: str, serve: Serve, model: Path, weights: Path, tmp_path: Path
) -> None:
    asked = requests(2, 2)
    server = serve(kind)
    with opened([server], model, tmp_path) as engine:
        for version, folder in ((1, weights), (2, model), (3, weights)):
            engine.load(folder, version)
            assert server.label.startswith(f"v00000{version}-")
            assert same(engine.complete(asked, HOT), expected(folder, asked, HOT))


@both
def test_a_prompts_completions_go_to_one_server_and_prompts_are_dealt_evenly(
    kind: str, serve: Serve, model: Path, tmp_path: Path
) -> None:
    servers = [serve(kind), serve(kind)]
    with opened(servers, model, tmp_path) as engine:
        engine.complete(requests(6, 4), HOT)
    first, second = (Counter(completions_asked(server)) for server in servers)
    assert set(first.values()) == set(second.values()) == {4}
    assert (len(first), len(second), first.keys() & second.keys()) == (3, 3, set())


@both
def test_a_server_killed_in_the_middle_of_a_batch_loses_and_doubles_nothing(
    kind: str, serve: Serve, model: Path, weights: Path, tmp_path: Path
) -> None:
    asked = requests(8, 8)
    servers = [serve(kind), serve(kind)]
    with opened(servers, model, tmp_path) as engine:
        engine.load(weights, 1)
        servers[1].faults["dies_after"] = 13
        found = engine.complete(asked, HOT)
        assert same(found, expected(weights, asked, HOT))
        assert engine.failures == 1
        # Of what the dead server had answered, only what was not yet known to be by the right weights is asked again.
        assert 64 - 13 <= len(completions_asked(servers[0])) < 64
        assert same(engine.complete(asked, HOT), found)


@both
def test_what_has_ended_earlier_is_not_asked_again(kind: str, serve: Serve, model: Path, tmp_path: Path) -> None:
    asked, server, finished = requests(2, 4), serve(kind), FinishedCompletions()
    wanted = expected(model, asked, HOT)
    finished.extend(asked, [*wanted.items()][:6])
    with opened([server], model, tmp_path) as engine:
        assert same(engine.complete(asked, HOT, finished), wanted)
    assert completions_asked(server) == [asked[1].prompt_ids] * 2


@both
def test_a_server_that_comes_back_gets_the_weights_before_it_is_used(
    kind: str, serve: Serve, model: Path, weights: Path, tmp_path: Path
) -> None:
    asked = requests(4, 2)
    lasting, failing = serve(kind), serve(kind)
    with opened([lasting, failing], model, tmp_path) as engine:
        engine.load(weights, 5)
        failing.kill()
        assert same(engine.complete(asked, HOT), expected(weights, asked, HOT))
        with contract_server(kind, model, port=failing.port) as back:  # restarted, with its first weights
            engine.load(weights, 6)
            assert same(engine.complete(asked, HOT), expected(weights, asked, HOT))
            assert back.label.startswith("v000006-")
            assert len(completions_asked(back)) == 4


@both
def test_a_server_that_was_restarted_unnoticed_is_not_believed(
    kind: str, serve: Serve, model: Path, weights: Path, tmp_path: Path
) -> None:
    asked = requests(4, 2)
    server = serve(kind)
    with opened([server], model, tmp_path) as engine:
        engine.load(weights, 1)
        server.kill()
        with contract_server(kind, model, port=server.port) as restarted:
            assert same(engine.complete(asked, HOT), expected(weights, asked, HOT))
            assert restarted.label.startswith("v000001-")


@both
def test_a_server_that_returns_during_a_batch_takes_part_again(
    kind: str, serve: Serve, model: Path, weights: Path, tmp_path: Path
) -> None:
    asked, server = requests(2, 4), serve(kind)
    with opened([server], model, tmp_path, {"retry_seconds": 20}) as engine:
        engine.load(weights, 1)
        server.faults["dies_after"] = 3
        restarted: list[ContractServer] = []

        def restart() -> None:
            while not restarted:
                time.sleep(0.1)
                with suppress(OSError):  # the first one still listens
                    restarted.append(ContractServer(kind, model, port=server.port))

        thread = threading.Thread(target=restart)
        thread.start()
        assert same(engine.complete(asked, HOT), expected(weights, asked, HOT))
        thread.join()
        restarted[0].kill()


@both
def test_too_few_servers_for_too_long_is_one_error(kind: str, serve: Serve, model: Path, tmp_path: Path) -> None:
    servers = [serve(kind), serve(kind)]
    with opened(servers, model, tmp_path, {"retry_seconds": 0.5, "min_servers": 2}) as engine:
        servers[0].kill()
        with pytest.raises(ServerOutageError, match=r"1 of 2 servers work, 2 are needed.*--resume"):
            engine.complete(requests(2, 2), HOT)


@both
def test_a_run_begins_with_fewer_servers_if_they_are_enough(
    kind: str, serve: Serve, model: Path, tmp_path: Path
) -> None:
    working, gone = serve(kind), serve(kind)
    gone.kill()
    section = {"retry_seconds": 0.3}
    with opened([working, gone], model, tmp_path, section) as engine:
        assert len(engine.complete(requests(2, 2), HOT)) == 4
    with pytest.raises(ServerOutageError, match="cannot be reached"), opened([gone], model, tmp_path, section):
        pass


@both
def test_a_busy_server_is_asked_again(kind: str, serve: Serve, model: Path, tmp_path: Path) -> None:
    asked, server = requests(2, 4), serve(kind)
    with opened([server], model, tmp_path) as engine:
        server.faults["busy"] = 5
        assert same(engine.complete(asked, HOT), expected(model, asked, HOT))
        assert engine.failures == 0


@both
def test_a_server_that_takes_too_long_is_given_up(kind: str, serve: Serve, model: Path, tmp_path: Path) -> None:
    server = serve(kind)
    with opened([server], model, tmp_path, {"request_seconds": 0.5}) as engine:
        server.faults["slow"] = 3
        with pytest.raises(ServerError, match="did not answer"):
            engine.complete(requests(1, 1), HOT)


@both
def test_a_server_that_dies_of_bad_weights_is_named(
    kind: str, serve: Serve, model: Path, weights: Path, tmp_path: Path
) -> None:
    server = serve(kind)
    with opened([server], model, tmp_path, {"retry_seconds": 0.5}) as engine:
        server.faults["refuses_weights"] = True
        with pytest.raises(ServerOutageError, match="bad shape"):
            engine.load(weights, 1)
        # Nothing was asked of it after that, which would have ended it.
        assert completions_asked(server) == []


@both
@pytest.mark.parametrize("fault", ["keeps_weights", "keeps_label", "keeps_cache"])
def test_a_server_that_lies_about_its_weights_is_found_before_it_samples(
    kind: str, fault: str, serve: Serve, model: Path, weights: Path, tmp_path: Path
) -> None:
    server = serve(kind)
    with opened([server], model, tmp_path, {"retry_seconds": 0.5}) as engine:
        server.faults[fault] = True
        with pytest.raises(ServerError, match="weights"):
            engine.load(weights, 1)
            ids = [5, 9, 10, 11, 12]
            require_scores("the server", engine.score(ids), TableModel(weights).score(ids), 0.01)
        assert completions_asked(server) == []


@both
def test_one_of_two_servers_with_other_weights_is_found_without_the_trainer(
    kind: str, serve: Serve, model: Path, weights: Path, tmp_path: Path
) -> None:
    servers = [serve(kind), serve(kind)]
    with opened(servers, model, tmp_path) as engine:
        servers[1].faults["keeps_weights"] = True
        with pytest.raises(ServerError, match="does not have the weights"):
            engine.load(weights, 1)


@both
@pytest.mark.parametrize(
    ("fault", "told"),
    [("clones_seeds", "every seed"), ("drops_logprobs", "log-prob"), ("raw_logprobs", "temperature")],
)
def test_a_server_whose_samples_cannot_be_trained_on_is_refused_at_once(
    kind: str, fault: str, told: str, serve: Serve, model: Path, tmp_path: Path
) -> None:
    server = serve(kind)
    server.faults[fault] = True
    with pytest.raises((ConfigError, ServerError), match=told), opened([server], model, tmp_path):
        pass


@both
def test_a_server_that_ignores_seeds_works_and_is_said_not_to_repeat(
    kind: str, serve: Serve, model: Path, tmp_path: Path
) -> None:
    server = serve(kind)
    server.faults["ignores_seeds"] = True
    with opened([server], model, tmp_path) as engine:
        assert not engine.repeats
        assert len(engine.complete(requests(2, 2), HOT)) == 4


@both
def test_a_completion_that_breaks_off_is_not_taken_for_a_whole_one(
    kind: str, serve: Serve, model: Path, tmp_path: Path
) -> None:
    server = serve(kind)
    with opened([server], model, tmp_path) as engine:
        server.faults["breaks_off"] = True
        with pytest.raises(ServerError, match=r"stopped after|no end token"):
            engine.complete(requests(4, 4), HOT)


@both
def test_weights_that_a_server_could_not_read_are_refused_before_it_sees_them(
    kind: str, serve: Serve, model: Path, weights: Path, tmp_path: Path
) -> None:
    server = serve(kind)
    whole = (weights / "model.safetensors").read_bytes()
    with opened([server], model, tmp_path) as engine:
        (weights / "model.safetensors").write_bytes(whole[:-1])
        with pytest.raises(ModelError, match="cannot be read"):
            engine.load(weights, 1)
        (weights / "model.safetensors").unlink()
        with pytest.raises(ModelError, match="no safetensors"):
            engine.load(weights, 1)
        assert server.label == "default"


@both
def test_weights_are_copied_to_the_shared_folder_and_old_ones_removed(
    kind: str, serve: Serve, model: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    asked, server = requests(2, 2), serve(kind)
    with opened([server], model, tmp_path, {"folder": shared}) as engine:
        assert shared.stat().st_mode & 0o777 == 0o700
        for version in (1, 2, 3):
            folder = write_table(tmp_path / f"v{version}", seed=version)
            engine.load(folder, version)
            assert [path.name for path in shared.iterdir()] == [server.label]
            assert same(engine.complete(asked, HOT), expected(folder, asked, HOT))
    assert not list(shared.iterdir())


def test_a_prompt_that_does_not_fit_is_refused_here(serve: Serve, model: Path, tmp_path: Path) -> None:
    server = serve("vllm-server")
    with (
        opened([server], model, tmp_path, max_length=64) as engine,
        pytest.raises(ConfigError, match="60 tokens plus 5"),
    ):
        engine.complete([GenerationRequest(tuple([5] * 60))], Sampling(5))


@both
def test_the_probes_fit_into_a_small_model(kind: str, serve: Serve, model: Path, tmp_path: Path) -> None:
    server = serve(kind)
    with opened([server], model, tmp_path, max_length=40) as engine:
        engine.load(model, 1)
        with pytest.raises(ConfigError, match="at most 39"):
            engine.score([5] * 40)
    for path, body in server.asked:
        if path.endswith(("generate", "completions")):
            prompt = body.get("input_ids") or body["prompt"][0]
            new_tokens = body["sampling_params"]["max_new_tokens"] if "input_ids" in body else body["max_tokens"]
            assert len(prompt) + new_tokens <= 40


def test_no_requests_give_no_completions(serve: Serve, model: Path, tmp_path: Path) -> None:
    with opened([serve("vllm-server")], model, tmp_path) as engine:
        assert engine.complete([], HOT) == {}


def test_a_key_is_sent_and_never_shown(
    serve: Serve, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_TOKEN", "correct-horse-battery")
    section: dict[str, Any] = {"token_env": "SERVER_TOKEN"}
    server = serve("vllm-server", key="correct-horse-battery")
    with opened([server], model, tmp_path, section) as engine:
        assert len(engine.complete(requests(1, 2), HOT)) == 2
    server.key = "another-horse-battery"
    with pytest.raises(ConfigError, match="rejects the key") as refused, opened([server], model, tmp_path, section):
        pass
    assert "horse" not in str(refused.value)
