"""The template in a Modelfile, rendered by Go's own text/template, gives the bytes of training."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from posttrain.conversation.chatml import render_prompt, text, with_default_system
from posttrain.conversation.messages import Conversation, Message
from posttrain.conversation.templates import template_messages
from posttrain.export.modelfile import GO_TEMPLATE
from posttrain.export.probes import CONVERSATIONS, PROMPTS

pytestmark = pytest.mark.gguf

PROGRAM = Path(__file__).with_name("render.go")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("go")
    environment = {**os.environ, "HOME": str(folder), "GOCACHE": str(folder / "cache"), "GOFLAGS": "", "GOPROXY": "off"}
    subprocess.run(["go", "build", "-o", folder / "render", PROGRAM], cwd=folder, env=environment, check=True)
    return folder / "render"


def rendered(program: Path, conversations: list[Conversation]) -> list[str]:
    given = {"Template": GO_TEMPLATE, "Conversations": [template_messages(each) for each in conversations]}
    ended = subprocess.run([program], input=json.dumps(given).encode(), capture_output=True, check=True)
    return json.loads(ended.stdout)


def test_prompts_are_rendered_byte_for_byte(program: Path):
    conversations = [*CONVERSATIONS, *PROMPTS]
    assert rendered(program, conversations) == [text(render_prompt(each)) for each in conversations]


def test_a_system_message_that_ollama_puts_first_is_the_default_of_training(program: Path):
    system = "Answer briefly.\nIn English."
    # ollama puts the Modelfile's SYSTEM before a conversation that has none.
    found = rendered(program, [with_default_system(each, system) for each in PROMPTS])
    assert found == [text(render_prompt(each, default_system=system)) for each in PROMPTS]


def test_a_last_message_of_the_assistant_is_left_open(program: Path):
    (found,) = rendered(program, [Conversation((Message("user", "Count."), Message("assistant", "One, two")))])
    assert found == "<|im_start|>user\nCount.<|im_end|>\n<|im_start|>assistant\nOne, two"
