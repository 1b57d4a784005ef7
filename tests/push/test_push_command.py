"""toolkit-push: the files, the card and the commit of what a run trained, and what is refused before it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from cli.refusals import contents, the_one_error
from hub_store import TOKEN, HubServer
from posttrain.base.files import content_digest
from posttrain.base.locks import own_output, process_lock
from posttrain.inference.weights import choose_weights
from posttrain.merge.merge import merge
from push.conftest import Push

KNOWN = ("--base", "owner/base", "--license", "mit")
ADAPTER = ["README.md", "adapter_config.json", "adapter_model.safetensors", "chat_template.jinja", "tokenizer.json"]


def card(files: dict[str, bytes]) -> tuple[dict[str, object], str]:
    """The card's metadata and its text."""
    _, metadata, text = files["README.md"].decode().split("---\n", 2)
    return yaml.safe_load(metadata), text


def test_an_adapter_is_pushed_with_its_base_and_without_this_machines_paths(
    push: Push, hub: HubServer, run: Path
) -> None:
    told = push("owner/name", *KNOWN).stderr
    files = hub.files("owner/name")
    assert sorted(files) == [*ADAPTER, "tokenizer_config.json"]
    assert hub.repos["owner/name"].private and hub.titles("owner/name") == ["task, step 6: adapter"]
    assert files["adapter_model.safetensors"] == (run / "adapter_model.safetensors").read_bytes()
    trained, pushed = json.loads((run / "adapter_config.json").read_text()), json.loads(files["adapter_config.json"])
    assert pushed == {**trained, "base_model_name_or_path": "owner/base"}
    here = str(run.parents[1]).encode(), str(trained["base_model_name_or_path"]).encode()
    assert not [name for name, data in files.items() if any(path in data for path in here)]
    assert (
        f"pushed 6 files to {hub.url}/owner/name at main, commit {hub.repos['owner/name'].branches['main'][-1][:10]}"
        in told
    )

    assert "all 6 files were at" in push("owner/name", *KNOWN).stderr
    assert len(hub.titles("owner/name")) == 1


def test_the_card_says_what_the_run_recorded(push: Push, hub: HubServer, run: Path) -> None:
    push("owner/name", *KNOWN)
    metadata, text = card(hub.files("owner/name"))
    assert metadata == {
        "base_model": "owner/base",
        "base_model_relation": "adapter",
        "library_name": "peft",
        "license": "mit",
        "model_name": "name",
        "pipeline_tag": "text-generation",
        "tags": ["posttrain-toolkit", "sft"],
    }
    result = json.loads((run / "result.json").read_text())
    manifest = json.loads((run / "manifest.json").read_text())
    assert "made from [owner/base](https://huggingface.co/owner/base) (in the run: tiny) by supervised" in text
    for row in (
        "| optimizer steps | 6 |",
        f"| tokens | {result['tokens']} |",
        f"| trained tokens | {result['trained_tokens']} |",
        "| learning rate | 0.01, cosine |",
        "| trained weights | LoRA, r 4, alpha 32 |",
        "| two | step 6 | a × 1, b × 2 |",
        f"| held-out loss | 6 | {result['validation_loss']:.4f} |",
        f"| a | {manifest['identity']['datasets']['a']} |",
        f"| held-out rows | {manifest['identity']['validation.dataset']} |",
        f"| torch | {manifest['packages']['torch']} |",
    ):
        assert row in text


def test_a_checkpoint_has_a_card_of_its_own_step(push: Push, hub: HubServer, run: Path) -> None:
    push("owner/name", *KNOWN, "--checkpoint", "3", "--revision", "step-3")
    files = hub.files("owner/name", "step-3")
    assert files["adapter_model.safetensors"] == (run / "checkpoint-3" / "adapter_model.safetensors").read_bytes()
    [held_out] = [
        row["eval_loss"]
        for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        if row["step"] == 3 and "eval_loss" in row
    ]
    _, text = card(files)
    assert "| optimizer steps | 3 |" in text and f"| held-out loss | 3 | {held_out:.4f} |" in text
    assert 'from_pretrained("owner/name", revision="step-3")' in text
    assert sorted(files) == [*ADAPTER, "tokenizer_config.json"]  # no optimizer, no state


def test_the_code_on_the_card_answers_with_what_was_pushed(
    push: Push, hub: HubServer, run: Path, tiny_model: Path, tmp_path: Path
) -> None:
    base = {file.name: (file.read_bytes(), file.suffix == ".safetensors") for file in tiny_model.iterdir()}
    hub.make("owner/base").commit("main", base, "the base")
    push("owner/name", *KNOWN)
    [code] = re.findall(r"```python\n(.*?)```", hub.files("owner/name")["README.md"].decode(), re.DOTALL)
    seen = code.replace("print(", "print(repr(").replace(", skip_special_tokens=True))", ")))")
    cache = str(tmp_path / "hub_cache")
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0", "HF_HOME": cache}
    answers = [
        subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=True).stdout
        for text in (seen, seen.replace('"owner/name", revision="main"', repr(str(run))))
    ]
    assert answers[0] == answers[1] and len(answers[0]) > 5
    assert hub.asked("GET /owner/name/resolve/.*/adapter_model.safetensors") == 1


def test_a_merged_model_is_pushed_once_it_is_newer_than_its_adapter(push: Push, hub: HubServer, run: Path) -> None:
    error = the_one_error(push("owner/name", *KNOWN, "--weights", "merged", expect=2).stderr, "")
    assert "create it with toolkit-merge" in error
    merge(run / "config.yaml")
    push("owner/name", "--license", "mit", "--weights", "merged")
    files = hub.files("owner/name")
    assert files["model.safetensors"] == (run / "merged" / "model.safetensors").read_bytes()
    assert "adapter_config.json" not in files
    metadata, text = card(files)
    assert (metadata["library_name"], "base_model" in metadata) == ("transformers", False)
    assert "AutoModelForCausalLM" in text and "made from tiny by" in text

    os.utime(run / "adapter_config.json")  # trained again
    assert "is older than the adapter" in push("owner/name", *KNOWN, "--weights", "merged", expect=2).stderr


def export(run: Path, name: str, kind: str) -> Path:
    """A file with the report that toolkit-export writes beside it."""
    file = run / f"{name}-{kind}.gguf"
    file.write_bytes(f"GGUF {kind}".encode())
    answers = {"kl": 0.0021, "agreement": 0.996, "tokens": 814, "same_answers": 17, "answers": 20}
    report = {"file": file.name, "type": kind, "bytes": 7, "blake2b": content_digest(file), "weights": str(run)}
    file.with_suffix(".export.json").write_text(json.dumps({**report, "checks": {"answers": answers}}))
    return file


def test_gguf_files_are_pushed_with_their_checks_and_only_as_they_were_checked(
    push: Push, hub: HubServer, run: Path
) -> None:
    options = ("owner/name", *KNOWN, "--weights", "gguf")
    assert "write one with toolkit-export" in push(*options, expect=2).stderr
    q8 = export(run, "task", "q8_0")
    export(run, "task", "f16")
    export(run, "task-checkpoint-3", "q8_0")
    q8.with_suffix(".Modelfile").write_text("FROM ./task-q8_0.gguf\n")
    push(*options)
    files = hub.files("owner/name")
    assert sorted(files) == ["README.md", "task-f16.gguf", "task-q8_0.Modelfile", "task-q8_0.gguf"]
    metadata, text = card(files)
    assert (metadata["base_model_relation"], metadata["library_name"]) == ("quantized", "gguf")
    assert "| task-q8\\_0.gguf | q8\\_0 | 0 MiB | 99.6% | 0.0021 |" in text
    assert "llama-server --hf-repo owner/name --hf-file task-f16.gguf" in text
    push(*options, "--checkpoint", "3", "--revision", "step-3")
    assert "task-checkpoint-3-q8_0.gguf" in hub.files("owner/name", "step-3")

    q8.write_bytes(b"GGUF damaged")
    assert "is not the file that was checked" in push(*options, expect=2).stderr


def test_scores_of_the_same_weights_are_on_the_card_and_no_others(
    push: Push, hub: HubServer, run: Path, tmp_path: Path
) -> None:
    digest = choose_weights(run / "config.yaml", "adapter").digest()
    mean = {
        "prompts": 200,
        "clusters": None,
        "value": 0.465,
        "low": 0.397,
        "high": 0.534,
        "method": "Wilson",
        "ungraded": 1,
    }
    difference = {**mean, "value": 0.25, "low": 0.179, "high": 0.316}
    comparison = {
        "difference": difference,
        "test": "exact",
        "p": 0,
        "adjusted_p": 0,
        "smallest": None,
        "verdict": "better",
    }
    measure = {"scale": "reward", "estimates": {"sft": mean}, "comparisons": {"sft": comparison}}
    results = {
        "models": {"base": "tiny", "sft": "tiny with an adapter"},
        "weights": {"base": "0" * 32, "sft": digest},
        "baseline": "base",
        "tasks": {"problems": {"measures": {"right": measure}, "facts": {}, "failures": {}}},
    }
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "results.json").write_text(json.dumps(results))
    push("owner/name", *KNOWN, "--evaluation", tmp_path / "eval")
    metadata, text = card(hub.files("owner/name"))
    assert "| problems | right | 0.4650 | 0.3970 to 0.5340 | 200 | 1 | +0.2500 against base: better |" in text
    [index] = metadata["model-index"]  # type: ignore[misc]
    [result] = index["results"]
    assert (result["dataset"]["name"], result["metrics"]) == ("problems", [{"type": "right", "value": 0.465}])

    of_step_3 = push("owner/name", *KNOWN, "--evaluation", tmp_path / "eval", "--checkpoint", "3", expect=2).stderr
    assert "has no scores of the weights that are pushed, only of base, sft" in of_step_3
    assert "has no results.json" in push("owner/name", *KNOWN, "--evaluation", tmp_path, expect=2).stderr


def test_a_dry_run_asks_the_hub_prints_the_card_and_changes_nothing(push: Push, hub: HubServer, run: Path) -> None:
    before = contents(run)
    told = push("owner/name", *KNOWN, "--dry-run")
    assert "which does not exist yet" in told.stderr and "nothing was pushed (--dry-run)" in told.stderr
    assert told.stdout.startswith("---\n") and "| optimizer steps | 6 |" in told.stdout
    assert hub.repos == {} and hub.asked("^(POST|PUT)") == 0
    assert contents(run) == before


def test_a_whole_model_needs_no_base_and_its_licence_is_read_from_the_bases_card(
    push: Push, hub: HubServer, run: Path, tiny_model: Path, tmp_path: Path
) -> None:
    base = Path(shutil.copytree(tiny_model, tmp_path / "base"))
    (base / "README.md").write_text("---\nlicense: gemma\n---\n")
    config = yaml.safe_load((run / "config.yaml").read_text())
    config |= {"lora": None, "model": {**config["model"], "name": str(base)}}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (run / name).unlink()
    shutil.rmtree(run / "checkpoint-6")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(base / name, run / name)
    push("owner/name")
    metadata, text = card(hub.files("owner/name"))
    assert (metadata["license"], metadata["library_name"]) == ("gemma", "transformers")
    assert "| trained weights | all |" in text
    weights = tmp_path / "pushed.safetensors"
    weights.write_bytes(hub.files("owner/name")["model.safetensors"])
    assert load_file(weights).keys() == load_file(base / "model.safetensors").keys()


# Options after the repository, and words of the message.
REFUSED = {
    "no licence": (["--base", "owner/base"], "the licence of the base tiny is not known"),
    "no base": (["--license", "mit"], "say its Hugging Face id with --base"),
    "a checkpoint that is not there": ([*KNOWN, "--checkpoint", "5"], "no checkpoint at that step"),
    "a revision that is none": ([*KNOWN, "--revision", "a b"], "a revision is a branch's name"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_and_nothing_is_sent(case: str, push: Push, hub: HubServer, run: Path) -> None:
    words, message = REFUSED[case]
    before = contents(run)
    told = push("owner/name", *words, expect=2)
    assert message in f"error: {the_one_error(told.stderr, told.stdout)}"
    assert contents(run) == before and hub.asked("^(POST|PUT)") == 0


def test_a_name_that_is_none_and_a_missing_token_are_told_first(push: Push, hub: HubServer) -> None:
    assert "a repository is named OWNER/NAME" in push("name", *KNOWN, expect=2).stderr
    assert "set HF_TOKEN to a token that may write to owner/name" in push("owner/name", expect=2, HF_TOKEN="").stderr
    assert hub.requests == []


def test_a_run_in_work_and_an_unfinished_one_are_refused(push: Push, hub: HubServer, run: Path) -> None:
    with process_lock(run / ".lock"):
        assert "is being trained by process" in push("owner/name", *KNOWN, expect=2).stderr
    with own_output(run / "push"):
        assert "is being written by process" in push("owner/name", *KNOWN, expect=2).stderr
    (run / "result.json").unlink()
    assert "has not finished; finish it with --resume" in push("owner/name", *KNOWN, expect=2).stderr
    assert hub.repos == {}


def test_a_damaged_model_is_refused(push: Push, hub: HubServer, run: Path) -> None:
    for folder in (run, run / "checkpoint-3"):
        data = bytearray((folder / "adapter_model.safetensors").read_bytes())
        data[-1] ^= 1
        (folder / "adapter_model.safetensors").write_bytes(data)
    error = push("owner/name", *KNOWN, expect=2).stderr
    assert "is damaged: adapter_model.safetensors is not what was written" in error and "--checkpoint 6" in error
    assert "is damaged" in push("owner/name", *KNOWN, "--checkpoint", "3", expect=2).stderr
    assert hub.repos == {}


def test_a_secret_in_a_file_is_not_pushed(push: Push, hub: HubServer, run: Path) -> None:
    shutil.rmtree(run / "checkpoint-6")
    with (run / "chat_template.jinja").open("a") as file:
        file.write("{# my-own-secret-key-1 #}")
    error = push("owner/name", *KNOWN, expect=2, SERVICE_KEY="my-own-secret-key-1").stderr
    assert "chat_template.jinja would be pushed with the value of a variable" in error
    assert hub.repos == {}


def test_the_token_is_sent_to_the_hub_alone_and_written_nowhere(push: Push, hub: HubServer, tmp_path: Path) -> None:
    push("owner/name", *KNOWN, "--debug")
    assert any(f"Bearer {TOKEN}" in headers for headers in hub.headers)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
