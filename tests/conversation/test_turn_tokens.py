"""Which tokens end and begin a turn, for the kinds of template that models come with."""

import pytest
from transformers import AutoTokenizer

from posttrain.config.sections.chat import ChatConfig
from posttrain.conversation.encoder import conversation_encoder

CONTROL = ["<user>", "<assistant>", "<head>", "</head>", "<end>", "<return>", "<ask>", "</ask>"]
EACH = "{% for m in messages %}"
PROMPT = "{% endfor %}{% if add_generation_prompt %}"

# Kind of template: the template, its end tokens besides the tokenizer's <|im_end|>, and the tokens that begin a turn.
SHAPES = {
    "a role's name between two tokens": (
        EACH + "<head>{{ m.role }}</head>{{ m.content }}<end>" + PROMPT + "<head>assistant</head>{% endif %}",
        {"<end>"},
        {"<head>"},
    ),
    "a token for each role, and the eos behind the last turn": (
        EACH + "<{{ m.role }}>\n{{ m.content }}<end>\n" + PROMPT + "<assistant>\n{% else %}{{ eos_token }}{% endif %}",
        {"<end>"},
        {"<user>", "<assistant>"},
    ),
    "questions in brackets, answers ended by the eos": (
        EACH + "{% if m.role == 'user' %}<ask>{{ m.content }}</ask>{% else %}{{ m.content }}{{ eos_token }}{% endif %}"
        "{% endfor %}",
        set(),
        {"<ask>"},
    ),
    # An answer in several parts: the token that begins a turn may also occur within one.
    "another end where the conversation goes on": (
        EACH + "<head>{{ m.role }}</head>{{ m.content }}"
        "{% if loop.last and m.role == 'assistant' %}<return>{% else %}<end>{% endif %}"
        + PROMPT
        + "<head>assistant</head>{% endif %}",
        {"<return>"},
        set(),
    ),
    "no control token at the end of an answer": (
        EACH + "<{{ m.role }}>\n{{ m.content }}" + PROMPT + "<assistant>{% endif %}",
        set(),
        {"<user>", "<assistant>"},
    ),
    "no control tokens at all": (
        EACH + "{{ m.role }}: {{ m.content }}\n" + PROMPT + "assistant: {% endif %}",
        set(),
        set(),
    ),
    "one question and one answer at most": (
        "{% if messages | length > 2 %}{{ raise_exception('too much') }}{% endif %}"
        + EACH
        + "<{{ m.role }}>{{ m.content }}<end>"
        + PROMPT
        + "<assistant>{% endif %}",
        {"<end>"},
        set(),
    ),
    "nothing that it does not refuse": ("{{ raise_exception('never') }}", set(), set()),
}


@pytest.mark.parametrize(("template", "ends", "starts"), SHAPES.values(), ids=SHAPES)
def test_ends_and_starts_are_those_that_the_template_writes(tiny_model, template, ends, starts):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.add_special_tokens({"additional_special_tokens": CONTROL})
    tokenizer.chat_template = template
    encoder = conversation_encoder(ChatConfig(template="tokenizer"), tokenizer)
    assert set(tokenizer.convert_ids_to_tokens(sorted(encoder.end_ids))) == {"<|im_end|>", *ends}
    assert set(tokenizer.convert_ids_to_tokens(sorted(encoder.start_ids))) == starts
