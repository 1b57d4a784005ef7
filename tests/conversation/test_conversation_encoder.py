"""Encoding conversations as ids, with ChatML or the tokenizer's own template."""

import pytest
from transformers import AutoTokenizer

from posttrain.config.sections.chat import ChatConfig
from posttrain.conversation.encoder import conversation_encoder
from posttrain.conversation.messages import Conversation, Message
from posttrain.conversation.saved_template import use_trained_template
from posttrain.errors import ConfigError, DataError, ModelError

# ChatML as most models' own templates write it; it always ends with a newline.
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture
def tokenizer(tiny_model):
    loaded = AutoTokenizer.from_pretrained(tiny_model)
    loaded.chat_template = TEMPLATE
    return loaded


def talk(*texts: str, system: str | None = None) -> Conversation:
    """A conversation in which user and assistant alternate."""
    turns = [Message("assistant" if index % 2 else "user", text) for index, text in enumerate(texts)]
    return Conversation((*([Message("system", system)] if system is not None else []), *turns))


TALKS = [
    talk("zz", "QQQ"),
    talk("1 2", " three four\n", "\n\nfive", "\tsix"),
    talk("Anna has 3 apples", "7", system="You are a helpful assistant."),
]


@pytest.mark.parametrize("template", ["chatml", "tokenizer"])
@pytest.mark.parametrize("default_system", [None, "one two"])
def test_a_prompt_is_the_first_ids_of_the_row_that_answers_it(tokenizer, template, default_system):
    encoder = conversation_encoder(ChatConfig(template=template, default_system=default_system), tokenizer)
    rows = encoder.rows(TALKS)
    prompts = encoder.prompts([Conversation(each.messages[:-1], each.tools) for each in TALKS])
    for row, prompt, conversation in zip(rows, prompts, TALKS, strict=True):
        assert row.ids[: len(prompt)] == prompt
        answer = row.ids[len(prompt) :]
        assert tokenizer.decode(answer) == conversation.messages[-1].content + "<|im_end|>\n"
        assert row.trained[len(prompt) :] == [True] * (len(answer) - 1) + [False]


@pytest.mark.parametrize("template", ["chatml", "tokenizer"])
def test_each_answer_and_its_end_is_trained_and_nothing_else(tokenizer, template):
    encoder = conversation_encoder(ChatConfig(template=template), tokenizer)
    row = encoder.rows([talk("z", "Q", "zz", "QQ")])[0]
    marked = ["T" if flag else "." for flag in row.trained]
    # A turn is <|im_start|>, role, newline, the letters, <|im_end|>, newline.
    assert "".join(marked) == "......" + "...TT." + "......." + "...TTT."
    assert encoder.end_ids == {tokenizer.convert_tokens_to_ids("<|im_end|>")}


def test_both_ways_write_the_same_ids_where_the_template_is_chatml(tokenizer):
    own, chatml = (conversation_encoder(ChatConfig(template=name), tokenizer) for name in ("tokenizer", "chatml"))
    assert own.rows(TALKS[::2]) == chatml.rows(TALKS[::2])


def test_only_the_last_answer_is_trained_where_the_config_says_so(tokenizer):
    for template in ("chatml", "tokenizer"):
        encoder = conversation_encoder(ChatConfig(template=template, train_on="last"), tokenizer)
        assert sum(encoder.rows([talk("z", "Q", "zz", "QQ")])[0].trained) == 3


def test_in_chatml_the_text_of_a_control_token_stays_text(tokenizer):
    typed = [talk("<|im_end|>", "Q")]
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    chatml = conversation_encoder(ChatConfig(), tokenizer)
    assert chatml.rows(typed)[0].ids.count(end) == 2
    assert chatml.prompts(typed)[0].count(end) == 2


def test_a_tokenizer_without_a_template_cannot_be_asked_for_its_own(tiny_model):
    bare = AutoTokenizer.from_pretrained(tiny_model)
    with pytest.raises(ModelError, match=r"this tokenizer has no chat template; set chat\.template: chatml"):
        conversation_encoder(ChatConfig(template="tokenizer"), bare)


def test_a_template_needs_a_token_that_ends_a_turn(tokenizer):
    tokenizer.eos_token = None
    assert conversation_encoder(ChatConfig(template="tokenizer"), tokenizer).end_ids == {2}
    tokenizer.chat_template = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    with pytest.raises(ModelError, match="defines an end token"):
        conversation_encoder(ChatConfig(template="tokenizer"), tokenizer)


def test_chatml_needs_its_control_tokens_in_the_vocabulary(tiny_model, tmp_path):
    loaded = AutoTokenizer.from_pretrained(tiny_model)
    loaded.save_pretrained(tmp_path)
    for path in tmp_path.iterdir():
        path.write_text(path.read_text().replace("<|im_end|>", "<|other|>"))
    with pytest.raises(ModelError, match=r"no token '<\|im_end\|>'"):
        conversation_encoder(ChatConfig(), AutoTokenizer.from_pretrained(tmp_path))


def test_a_template_that_rewrites_earlier_turns_is_refused(tokenizer):
    tokenizer.chat_template = TEMPLATE.replace("message['content']", "(messages | length) | string")
    encoder = conversation_encoder(ChatConfig(template="tokenizer"), tokenizer)
    with pytest.raises(DataError, match="cannot be masked by prefixes"):
        encoder.rows([talk("z", "Q")])


def test_a_template_with_another_end_token_stops_at_that_one(tiny_model):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.eos_token = "<|endoftext|>"
    tokenizer.chat_template = TEMPLATE.replace("<|im_end|>", "<|endoftext|>")
    encoder = conversation_encoder(ChatConfig(template="tokenizer"), tokenizer)
    assert tokenizer.convert_ids_to_tokens(sorted(encoder.end_ids)) == ["<|endoftext|>"]
    row = encoder.rows([talk("z", "Q")])[0]
    trained = [id_ for id_, flag in zip(row.ids, row.trained, strict=True) if flag]
    assert tokenizer.decode(trained) == "Q<|endoftext|>"


# Turns end with a token other than the tokenizer's eos, and system turns are not supported.
TURNS = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system turn here') }}{% endif %}"
    "{% for m in messages %}{{ '<turn>' + m.role + '\n' + m.content + '</turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<turn>assistant\n' }}{% endif %}"
)


def test_the_end_of_a_turn_is_asked_of_the_template(tokenizer):
    tokenizer.add_special_tokens({"additional_special_tokens": ["<turn>", "</turn>"]})
    tokenizer.chat_template = TURNS
    encoder = conversation_encoder(ChatConfig(template="tokenizer"), tokenizer)
    # A model that has learnt the tokenizer's own end token may still generate it.
    assert tokenizer.convert_ids_to_tokens(sorted(encoder.end_ids)) == ["<|im_end|>", "</turn>"]
    assert tokenizer.convert_ids_to_tokens(sorted(encoder.start_ids)) == ["<turn>"]
    row = encoder.rows([talk("z", "Q")])[0]
    trained = [id_ for id_, flag in zip(row.ids, row.trained, strict=True) if flag]
    assert tokenizer.decode(trained) == "Q</turn>"


def test_a_turn_of_chatml_begins_with_its_control_token(tokenizer):
    for template in ("chatml", "tokenizer"):
        encoder = conversation_encoder(ChatConfig(template=template), tokenizer)
        assert tokenizer.convert_ids_to_tokens(sorted(encoder.start_ids)) == ["<|im_start|>"]


def test_the_packaged_models_own_template_gives_rows_too(smollm2_folder):
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    encoder = conversation_encoder(ChatConfig(template="tokenizer"), tokenizer)
    conversation = talk("What is the capital of France?", "Paris.", system="You are helpful.")
    row = encoder.rows([conversation])[0]
    prompt = encoder.prompts([Conversation(conversation.messages[:-1])])[0]
    assert row.ids[: len(prompt)] == prompt
    assert tokenizer.decode([id_ for id_, flag in zip(row.ids, row.trained, strict=True) if flag]) == "Paris.<|im_end|>"


# Begins each answer with a mood, unless there is none.
MOODS = (
    TEMPLATE.replace("assistant\n' }}", "assistant\n' }}{{ mood | default('') }}")
    .replace(
        "{{ '<|im_start|>'",
        "{% set own = mood | default('') if message.role == 'assistant' else '' %}{{ '<|im_start|>'",
    )
    .replace("+ message['content']", "+ own + message['content']")
)


@pytest.mark.parametrize("own", [True, False])
def test_variables_go_into_rows_and_prompts_and_into_the_saved_template(tokenizer, own):
    tokenizer.chat_template = "{{ raise_exception('not this one') }}" if own else MOODS
    chat = ChatConfig(template=MOODS if own else "tokenizer", template_variables={"mood": "zz"})
    encoder = conversation_encoder(chat, tokenizer)
    (row,), (prompt,) = encoder.rows([talk("1", "Q")]), encoder.prompts([talk("1")])
    assert tokenizer.decode(prompt).endswith("<|im_start|>assistant\nzz")
    assert tokenizer.decode(row.ids[len(prompt) :]) == "Q<|im_end|>\n"
    use_trained_template(tokenizer, chat)
    asked = [{"role": "user", "content": "1"}]
    saved = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
    assert saved == prompt
    assert tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False, mood="").endswith("\n")


def test_a_variable_that_the_template_does_not_mention_is_refused(tokenizer):
    chat = ChatConfig(template=MOODS, template_variables={"moods": 1})
    with pytest.raises(ConfigError, match=r"template_variables: the chat template has no variable moods; it has mood"):
        conversation_encoder(chat, tokenizer)
    with pytest.raises(ConfigError, match=r"no variable mood; it has none"):
        conversation_encoder(ChatConfig(template="tokenizer", template_variables={"mood": 1}), tokenizer)
