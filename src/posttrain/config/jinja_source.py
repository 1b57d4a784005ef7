"""Chat templates of one's own: read from a file, checked for syntax, and searched for their variables."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationInfo

from posttrain.base.text import as_shown, clipped
from posttrain.config.strict import resolve_path

if TYPE_CHECKING:
    from jinja2 import nodes

SUFFIXES = (".jinja", ".jinja2", ".j2", ".txt")
"""How the name of a template's file ends."""

RESERVED = {
    *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message"),
    *("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"),
    *("conversation", "chat_template", "tokenize", "padding", "truncation", "max_length", "return_tensors"),
    *("return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs", "additional_special_tokens"),
}
"""Names that cannot be variables of a config: set by the toolkit or the tokenizer, or options of the rendering."""

_FUNCTIONS = {"raise_exception", "strftime_now", "range", "dict", "lipsum", "cycler", "joiner", "namespace"}

_ASKING = {"defined", "undefined", "default", "d"}
"""Tests and filters for names that may not be set."""

_GENERATION = re.compile(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})")


def read_template(value: str, info: ValidationInfo) -> str:
    """The text of the template that `value` names or is.

    A text with Jinja's brackets is taken for a template itself, so that the config in a run's folder holds its whole
    template, whatever becomes of the file.

    Raises:
        ValueError: it is neither, the file cannot be read or is empty, or the syntax is wrong.
    """
    if not value.endswith(SUFFIXES) or "\n" in value:
        if "{{" not in value and "{%" not in value:
            raise ValueError(
                f"{clipped(value)!r} is not a template: give chatml, tokenizer, or the path of a Jinja file "
                f"({', '.join(SUFFIXES)})"
            )
        require_syntax(value, "the template")
        return value
    path = resolve_path(value, info)
    text = _text_of(path)
    require_syntax(text, as_shown(path))
    return text


def _text_of(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{as_shown(path)} is not UTF-8 text") from None
    except OSError as error:
        raise ValueError(f"cannot read {as_shown(path)}: {error.strerror}") from None
    if not text.strip():
        raise ValueError(f"{as_shown(path)} is empty")
    if "{{" not in text and "{%" not in text:
        raise ValueError(f"{as_shown(path)} is not a chat template: it has neither {{{{ }}}} nor {{% %}}")
    return text


def require_syntax(text: str, name: str) -> None:
    """Raise ValueError, with the line, if `text` is not valid Jinja; not checked where Jinja is not installed."""
    try:
        from jinja2 import TemplateError, TemplateSyntaxError  # not part of the base install
    except ImportError:
        return
    try:
        _parsed(text)
    except TemplateSyntaxError as error:
        raise ValueError(f"{name} is not valid Jinja: line {error.lineno}: {clipped(str(error.message))}") from None
    except (TemplateError, RecursionError) as error:
        raise ValueError(f"{name} is not valid Jinja: {clipped(str(error))}") from None


def variables_of(text: str) -> list[str]:
    """The names that a valid template reads and that a config may set, sorted.

    A name that the template itself sets counts only if the template gives it a default or asks whether it is defined.
    """
    from jinja2 import nodes
    from jinja2.meta import find_undeclared_variables

    tree = _parsed(text)
    own = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
    about = [each for each in tree.find_all((nodes.Test, nodes.Filter)) if each.name in _ASKING]
    asked = {each.node.name for each in about if isinstance(each.node, nodes.Name)}
    return sorted(find_undeclared_variables(tree) - (own - asked) - RESERVED - _FUNCTIONS)


def _parsed(text: str) -> "nodes.Template":
    from jinja2 import Environment

    # transformers' block around what the assistant says, as one that Jinja knows.
    known = _GENERATION.sub(lambda tag: f"{tag[1]}{'endif' if tag[2] else 'if true'}{tag[3]}", text)
    return Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]).parse(known)
