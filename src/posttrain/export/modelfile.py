"""Write a Modelfile, with which ollama serves a GGUF file just as it was trained."""

from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.generation import GenerationConfig
from posttrain.conversation.chatml import IM_END

# ollama puts its SYSTEM before conversations without a system message, and lets a last message of the assistant go on.
GO_TEMPLATE = """{{- range $i, $message := .Messages }}
{{- $is_last := eq (len (slice $.Messages $i)) 1 -}}
<|im_start|>{{ .Role }}
{{ .Content }}
{{- if not (and $is_last (eq .Role "assistant")) }}<|im_end|>
{{ end }}
{{- if and $is_last (ne .Role "assistant") }}<|im_start|>assistant
{{ end }}
{{- end }}"""
"""ChatML as a template of Go's text/template, byte for byte, for messages without tools and reasoning."""


def modelfile(file: str, chat: ChatConfig, generation: GenerationConfig) -> str:
    """The text of a Modelfile for the GGUF file named `file` in the same folder; `chat.template` must be chatml.

    Raises:
        ValueError: a Modelfile cannot express the system message or a stop text.
    """
    parameters: list[tuple[str, object]] = [
        ("temperature", generation.temperature),
        ("top_p", generation.top_p),
        ("top_k", generation.top_k),
        ("min_p", generation.min_p),
        ("repeat_penalty", generation.repetition_penalty),
        ("num_predict", generation.max_new_tokens),
        *(("stop", _quoted(stop, "generation.stop")) for stop in (IM_END, *generation.stop)),
    ]
    lines = [f"FROM ./{file}", f'TEMPLATE """{GO_TEMPLATE}"""']
    if chat.default_system is not None:
        lines.append(f"SYSTEM {_quoted(chat.default_system, 'chat.default_system')}")
    lines += [f"PARAMETER {name} {value}" for name, value in parameters]
    return "\n".join(lines) + "\n"


def _quoted(text: str, key: str) -> str:
    if '"""' in text or text.endswith('"'):
        raise ValueError(f"{key} has quotation marks that would end it there")
    return f'"""{text}"""' if '"' in text or "\n" in text else f'"{text}"'
