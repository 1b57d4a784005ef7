"""A chat template of one's own in a config, and variables for it."""

import pytest

from posttrain.config.dump import to_yaml
from posttrain.config.load import load_config
from posttrain.errors import ConfigError
from posttrain.inference.config import InferenceConfig

TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}{{ 'é' if mood }}\n\n"


@pytest.fixture
def config(tmp_path):
    """Writes a config with this chat section into a folder below the current one."""

    def write(chat):
        (tmp_path / "configs").mkdir(exist_ok=True)
        path = tmp_path / "configs" / "run.yaml"
        path.write_text(f"model: {{name: tiny}}\nchat: {chat}\n")
        return path

    return write


def test_a_resolved_config_holds_the_template_and_not_its_path(config, tmp_path):
    path = config("{template: ../mine.jinja, template_variables: {mood: [null, {a: 1.5}]}}")
    (tmp_path / "mine.jinja").write_text(TEMPLATE, encoding="utf-8-sig")
    loaded = load_config(path, InferenceConfig)
    assert (loaded.chat.own_template, loaded.chat.template) == (TEMPLATE, TEMPLATE)
    (tmp_path / "mine.jinja").unlink()
    path.write_text(to_yaml(loaded))
    assert load_config(path, InferenceConfig) == loaded


def test_a_path_on_the_command_line_starts_from_the_current_folder(config, tmp_path, monkeypatch):
    (tmp_path / "mine.txt").write_text(TEMPLATE)
    monkeypatch.chdir(tmp_path)
    assert load_config(config("{}"), InferenceConfig, ["chat.template=mine.txt"]).chat.template == TEMPLATE


WRONG_FILES = {
    "missing": (None, "cannot read .*mine.jinja: No such file or directory"),
    "empty": (b" \n", "mine.jinja is empty"),
    "no template": (b"hello", r"mine.jinja is not a chat template: it has neither \{\{ \}\} nor \{% %\}"),
    "no text": (b"{{ \xff }}", "mine.jinja is not UTF-8 text"),
    "no valid Jinja": (b"{{ messages }}\n{% if %}", "mine.jinja is not valid Jinja: line 2: Expected an expression"),
}


@pytest.mark.parametrize(("content", "told"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_a_file_that_is_no_template_is_refused_with_the_line_of_the_config(config, tmp_path, content, told):
    path = config("{template: ../mine.jinja}")
    if content is not None:
        (tmp_path / "mine.jinja").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"run\.yaml:2: chat\.template: .*{told}"):
        load_config(path, InferenceConfig)
