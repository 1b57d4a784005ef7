"""Code shipped with a model does not run, neither Python files nor through a chat template."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.model import ModelConfig
from posttrain.conversation.encoder import conversation_encoder
from posttrain.conversation.messages import Conversation, Message
from posttrain.errors import DataError, ModelError
from posttrain.models.hf import HfBackend


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """The file that the code creates if it runs."""
    return tmp_path / "ran"


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path, ran: Path) -> Path:
    """A model with Python files beside it."""
    folder = tmp_path / "with_code"
    shutil.copytree(tiny_model, folder)
    code = f"open({str(ran)!r}, 'w')\nfrom transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast\n"
    classes = "class Other(LlamaConfig): pass\nclass OtherModel(LlamaForCausalLM): pass\n"
    (folder / "code.py").write_text(f"{code}{classes}class OtherTokenizer(PreTrainedTokenizerFast): pass\n")
    for name in ("__init__.py", "setup.py", "tokenizer.py"):
        (folder / name).write_text(code)
    return folder


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def load(folder: Path, **options: bool) -> None:
    HfBackend().load_for_inference(ModelConfig(name=str(folder), **options), None, chatml=True)


def test_python_that_nothing_refers_to_is_left_alone(folder: Path, ran: Path) -> None:
    load(folder)
    assert not ran.exists()


def test_a_model_that_is_python_is_refused_unless_its_code_is_trusted(folder: Path, ran: Path) -> None:
    refers = {"AutoConfig": "code.Other", "AutoModelForCausalLM": "code.OtherModel"}
    change(folder / "config.json", auto_map=refers, model_type="unheard-of")

    with pytest.raises(ModelError, match="trust_remote_code"):
        load(folder)

    assert not ran.exists()


def test_a_tokenizer_that_is_python_is_refused_unless_its_code_is_trusted(folder: Path, ran: Path) -> None:
    refers = {"AutoTokenizer": [None, "code.OtherTokenizer"]}
    change(folder / "tokenizer_config.json", auto_map=refers, tokenizer_class="OtherTokenizer")

    with pytest.raises(ModelError, match="trust_remote_code"):
        load(folder)

    assert not ran.exists()


def test_code_that_is_trusted_is_run(folder: Path, ran: Path) -> None:
    """Shows that the tests above would notice if the code ran."""
    refers = {"AutoTokenizer": [None, "code.OtherTokenizer"]}
    change(folder / "tokenizer_config.json", auto_map=refers, tokenizer_class="OtherTokenizer")

    load(folder, trust_remote_code=True)

    assert ran.exists()


ESCAPES = [
    "{{ cycler.__init__.__globals__.os.popen('touch RAN').read() }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ self.__init__.__globals__.__builtins__.open('RAN', 'w') }}",
    "{{ namespace.__init__.__globals__['__builtins__']['__import__']('os').system('touch RAN') }}",
    "{{ messages.append.__self__.__class__.__base__.__subclasses__() }}",
    "{{ ('%s' | attr('__class__')).__base__ }}",
    "{% for c in [].__class__.__base__.__subclasses__() %}{{ c }}{% endfor %}",
]


@pytest.mark.parametrize("template", ESCAPES)
def test_a_chat_template_does_not_get_out_of_its_sandbox(tiny_model: Path, ran: Path, template: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = template.replace("RAN", str(ran))
    chat = ChatConfig(template="tokenizer")
    conversation = Conversation((Message("user", "hello"), Message("assistant", "hi")))

    try:
        (ids,) = conversation_encoder(chat, tokenizer).prompts([conversation])
    except DataError as error:
        assert "chat template rejects the conversation" in str(error)
    else:
        assert "class" not in tokenizer.decode(ids)

    assert not ran.exists()
