"""Measure prompts in characters, or in tokens if the config names a tokenizer."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from posttrain.base.cache import file_digest
from posttrain.base.files import require_file
from posttrain.base.text import as_shown, first_line
from posttrain.conversation.messages import Conversation
from posttrain.errors import ConfigError, DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def characters(conversation: Conversation) -> int:
    """Characters in the messages of a prompt."""
    return sum(len(message.content) for message in conversation.messages)


class TokenCounter:
    """Counts tokens by a `tokenizer.json` file, which is loaded for the first count."""

    def __init__(self, path: Path) -> None:
        """Raise ConfigError unless `path` is a file."""
        try:
            require_file(path)
        except DataError as error:
            raise ConfigError(f"tokenizer: {error}") from None
        self._path = path
        self.digest = file_digest(path)
        """Hash of the file."""

    def count(self, conversation: Conversation) -> int:
        """Tokens in the messages of a prompt, each by itself, without those that a chat template adds.

        Raises:
            ConfigError: the file is no tokenizer, or the package is not installed.
        """
        texts = [message.content for message in conversation.messages]
        return sum(len(encoding.ids) for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=False))

    @cached_property
    def _tokenizer(self) -> "Tokenizer":
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise ConfigError("tokenizer: needs tokenizers: pip install 'posttrain-toolkit[server]'") from None
        try:
            tokenizer = Tokenizer.from_file(str(self._path))
        except Exception as error:  # noqa: BLE001  # the library raises no class of its own
            reason = first_line(error)
            raise ConfigError(f"tokenizer: {as_shown(self._path)} is not a tokenizer.json file: {reason}") from None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer
