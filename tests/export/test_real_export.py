"""The packaged model, trained for three steps, becomes files that llama.cpp answers with as the model does."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from gguf import GGUFReader

from export.gguf_files import replace_text, set_number, swap_tensors
from posttrain.base.files import content_digest
from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.model import ModelConfig
from posttrain.conversation.chatml import render_prompt, text
from posttrain.conversation.encoder import conversation_encoder
from posttrain.errors import RunError
from posttrain.export.convert import convert
from posttrain.export.gguf_types import GgufType
from posttrain.export.llama_cpp import LlamaCpp, find_llama_cpp
from posttrain.export.probes import PROMPTS
from posttrain.export.server import llama_server
from posttrain.export.text_checks import check_ends, check_ids, check_rendering
from posttrain.export.verify import verify
from posttrain.models.hf import HfBackend

pytestmark = pytest.mark.gguf

SOURCE = Path(__file__).parents[2]
EXAMPLE = SOURCE / "examples" / "word_problems"
CHAT = ChatConfig(max_length=256)


def command(name: str, *words: str | Path) -> list[str]:
    return [sys.executable, "-c", f"from posttrain.cli.{name} import main; main()", *map(str, words)]


@pytest.fixture(scope="module")
def config(smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config whose run has been trained and merged."""
    folder = tmp_path_factory.mktemp("export")
    shutil.copytree(EXAMPLE, folder / "example", ignore=shutil.ignore_patterns("*.py"))
    config, options = folder / "example" / "sft.yaml", ["--set", f"run.output_dir={folder / 'runs'}"]
    options += ["--set", f"model.name={smollm2_folder}"]
    quick = ["--set", "training.max_steps=3", "--set", "validation=null", "--set", "training.warmup_steps=1"]
    subprocess.run(command("sft", config, *options, *quick), check=True, capture_output=True)
    subprocess.run(command("merge", config, *options, "--no-verify"), check=True, capture_output=True)
    return config


@pytest.fixture(scope="module")
def run(config: Path) -> Path:
    return config.parents[1] / "runs" / "word_problems"


@pytest.fixture(scope="module")
def tools() -> LlamaCpp:
    return find_llama_cpp(None, "q8_0")


@pytest.fixture(scope="module")
def exported(config: Path, run: Path) -> Path:
    """The file of a whole export, which followed one that was killed while it converted."""
    whole = command("export", config, "--set", f"run.output_dir={run.parent}")
    aside = run / ".word_problems-q8_0.gguf.new.tmp"
    killed = subprocess.Popen(whole, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (aside / "word_problems-q8_0.gguf").is_file():
        assert killed.poll() is None, "the export ended before it could be killed"
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not list(run.glob("*.gguf")) and not list(run.glob("*.export.json"))
    assert aside.is_dir()
    told = subprocess.run(whole, check=True, capture_output=True, text=True).stderr
    (run.parent / "told.txt").write_text(told)
    assert not aside.exists()
    return run / "word_problems-q8_0.gguf"


def test_a_q8_file_is_within_its_limits_and_its_numbers_are_kept(exported: Path):
    report = json.loads(exported.with_suffix(".export.json").read_text())
    assert (report["file"], report["type"], report["bytes"]) == (exported.name, "q8_0", exported.stat().st_size)
    assert report["blake2b"] == content_digest(exported)
    assert report["checks"]["llama_cpp"]["server"] == f"xllamacpp {version('xllamacpp')}"
    answers, text = report["checks"]["answers"], report["checks"]["text"]
    assert answers["answers"] == 20 and answers["tokens"] > 400
    assert 0 < answers["kl"] < 0.01 and answers["agreement"] >= 0.95
    assert (text["conversations"], text["end_ids"]) == (20, [2])
    assert report["checks"]["tensors"]["compared"] == report["checks"]["tensors"]["tensors"] == 272
    assert exported.with_suffix(".Modelfile").read_text().startswith("FROM ./word_problems-q8_0.gguf\nTEMPLATE ")


def test_the_page_shows_what_is_printed(exported: Path):
    (page,) = re.findall(r"that prints:\n\n```\n(.*?)```", (SOURCE / "docs" / "export.md").read_text(), re.DOTALL)
    told = (exported.parents[1] / "told.txt").read_text().replace(f"{exported.parents[2]}/", "")
    numbers = re.compile(r"\d[\d.e-]*")
    assert numbers.sub("#", told) == numbers.sub("#", page)


def converted(run: Path, tools: LlamaCpp, folder: Path, kind: GgufType) -> Path:
    convert(tools, run / "merged", folder / f"{kind}.gguf", kind)
    return folder / f"{kind}.gguf"


def verified(file: Path, run: Path, tools: LlamaCpp, kind: GgufType, prompts: int) -> dict:
    model = ModelConfig(name=str(run / "merged"))
    return verify(file, model, CHAT, tools=tools, kind=kind, prompts=PROMPTS[:prompts])["answers"]


def test_a_float32_file_gives_the_models_greedy_answers(run: Path, tools: LlamaCpp, tmp_path: Path):
    found = verified(converted(run, tools, tmp_path, "f32"), run, tools, "f32", prompts=20)
    assert found["answers"] == found["same_answers"] == 20
    assert found["tokens"] > 400
    assert found["agreement"] == 1.0
    # llama.cpp adds up 49,152 probabilities in float32, so its log-probabilities are off by about 1e-4.
    assert found["kl"] < 5e-5 and found["largest_difference"] < 2e-3


def test_a_float16_file_is_within_its_limits(run: Path, tools: LlamaCpp, tmp_path: Path):
    found = verified(converted(run, tools, tmp_path, "f16"), run, tools, "f16", prompts=5)
    assert found["kl"] < 1e-3 and found["agreement"] >= 0.97


def damaged(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(exported, tmp_path / "damaged.gguf"))


def test_a_damaged_template_is_refused_by_name(exported: Path, run: Path, tools: LlamaCpp, tmp_path: Path):
    file = damaged(exported, tmp_path)
    replace_text(file, "tokenizer.chat_template", {"'<|im_start|>assistant\\n'": "'<|im_start|>assistent\\n'"})
    with pytest.raises(RunError, match=r"^chat template: the file's is not the model's"):
        verified(file, run, tools, "q8_0", prompts=1)
    # What llama.cpp renders with it is refused too.
    with llama_server(tools, file, 256) as server, pytest.raises(RunError, match=r"^chat template: llama\.cpp renders"):
        check_rendering(server, lambda conversation: text(render_prompt(conversation)))


def test_a_pipeline_exports_what_a_step_trained_and_keeps_it(config: Path, run: Path, tmp_path: Path):
    quick = {"training.max_steps": 1, "validation": None, "training.warmup_steps": 0}
    model = str(yaml.safe_load((run / "config.yaml").read_text())["model"]["name"])
    steps = {
        "sft": {"run": "sft", "config": str(config), "set": {**quick, "model.name": model}},
        "file": {"run": "export", "of": "sft", "type": "q8_0"},
    }
    chain = tmp_path / "chain.yaml"
    chain.write_text(yaml.safe_dump({"output_dir": str(tmp_path), "steps": steps}))
    subprocess.run(command("pipeline", chain), check=True, capture_output=True)
    (made,) = tmp_path.glob("chain/file-*/model.gguf")
    again = subprocess.run(command("pipeline", chain), check=True, capture_output=True, text=True).stderr
    assert "file: kept" in again and made.is_file()


def test_a_wrong_end_token_is_refused_by_name(exported: Path, run: Path, tools: LlamaCpp, tmp_path: Path):
    file = damaged(exported, tmp_path)
    set_number(file, "tokenizer.ggml.eos_token_id", 28)
    with pytest.raises(
        RunError, match=r"^end token: the file's is '.*' \(28\), but turns end with '<\|im_end\|>' \(2\)"
    ):
        verified(file, run, tools, "q8_0", prompts=1)


def test_a_swapped_tensor_is_refused_by_name(exported: Path, run: Path, tools: LlamaCpp, tmp_path: Path):
    file = damaged(exported, tmp_path)
    swap_tensors(file, "blk.3.ffn_up.weight", "blk.4.ffn_up.weight")
    with pytest.raises(RunError, match=r"^tensors: 2 hold .*blk\.3\.ffn_up\.weight holds model\.layers\.4\."):
        verified(file, run, tools, "q8_0", prompts=1)


def test_rows_that_were_moved_are_refused_for_what_the_file_answers(
    exported: Path, run: Path, tools: LlamaCpp, tmp_path: Path
):
    file = damaged(exported, tmp_path)
    tensor = next(each for each in GGUFReader(file, "r+").tensors if each.name == "blk.0.ffn_up.weight")
    tensor.data[:] = tensor.data[::-1].copy()
    with pytest.raises(RunError, match=r"^answers: the mean KL is .* nats, above 0\.01 for q8_0"):
        verified(file, run, tools, "q8_0", prompts=2)


def test_a_file_that_llama_cpp_cannot_load_is_refused_with_what_it_says(
    exported: Path, tools: LlamaCpp, tmp_path: Path
):
    file = tmp_path / "half.gguf"
    file.write_bytes(exported.read_bytes()[: exported.stat().st_size // 2])
    told = r"llama\.cpp cannot load half\.gguf; the end of its output"
    with pytest.raises(RunError, match=told), llama_server(tools, file, 256):
        pass


def test_other_ids_and_an_end_that_does_not_end_are_found_by_llama_cpp(exported: Path, run: Path, tools: LlamaCpp):
    """Against a tokenizer that differs from the file's, which stands for a file that differs from the tokenizer."""
    tokenizer = HfBackend().load_tokenizer(ModelConfig(name=str(run / "merged")), chatml=True)
    encoder = conversation_encoder(CHAT, tokenizer)
    other = HfBackend().load_tokenizer(ModelConfig(name=str(run / "merged")), chatml=True)
    other.add_tokens(["rock"])
    encoder.end_ids = frozenset({28})
    with llama_server(tools, exported, 256) as server:
        check_ids(server, tokenizer)
        with pytest.raises(RunError, match=r"^token ids: \"I'm, you're.* has in llama\.cpp the ids"):
            check_ids(server, other)
        with pytest.raises(RunError, match=r"^end token: llama\.cpp goes on after .* \(28\), which ends a turn"):
            check_ends(server, tokenizer, encoder)
