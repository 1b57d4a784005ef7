"""A Modelfile has the run's system message, stop texts and sampling."""

import pytest

from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.generation import GenerationConfig
from posttrain.export.modelfile import GO_TEMPLATE, modelfile


def lines(chat: ChatConfig, generation: GenerationConfig) -> list[str]:
    """The lines apart from the template."""
    text = modelfile("model-q8_0.gguf", chat, generation)
    assert text.count(f'TEMPLATE """{GO_TEMPLATE}"""\n') == 1
    return text.replace(f'TEMPLATE """{GO_TEMPLATE}"""\n', "").splitlines()


def test_it_names_the_file_the_end_token_and_all_of_the_sampling():
    given = GenerationConfig(
        temperature=0.7, top_p=0.9, top_k=40, min_p=0.05, repetition_penalty=1.1, max_new_tokens=64
    )
    assert lines(ChatConfig(), given) == [
        "FROM ./model-q8_0.gguf",
        "PARAMETER temperature 0.7",
        "PARAMETER top_p 0.9",
        "PARAMETER top_k 40",
        "PARAMETER min_p 0.05",
        "PARAMETER repeat_penalty 1.1",
        "PARAMETER num_predict 64",
        'PARAMETER stop "<|im_end|>"',
    ]


def test_the_runs_system_message_and_stop_texts_are_in_it():
    written = lines(ChatConfig(default_system="Answer briefly."), GenerationConfig(stop=("END", "two\nlines")))
    assert written[1] == 'SYSTEM "Answer briefly."'
    assert written[-4:] == ['PARAMETER stop "<|im_end|>"', 'PARAMETER stop "END"', 'PARAMETER stop """two', 'lines"""']


def test_a_text_with_quotation_marks_is_put_in_three():
    assert 'SYSTEM """Say "yes" or no."""' in lines(ChatConfig(default_system='Say "yes" or no.'), GenerationConfig())


@pytest.mark.parametrize("text", ['three """ marks', 'Say "yes"'])
def test_a_text_that_would_end_early_is_refused_with_its_key(text: str):
    with pytest.raises(ValueError, match=r"chat\.default_system"):
        modelfile("a.gguf", ChatConfig(default_system=text), GenerationConfig())
    with pytest.raises(ValueError, match=r"generation\.stop"):
        modelfile("a.gguf", ChatConfig(), GenerationConfig(stop=(text,)))
