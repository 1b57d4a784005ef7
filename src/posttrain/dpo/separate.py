"""A reference that is a model of its own."""

from typing import Any

from posttrain.dpo.config.dpo import DPOConfig
from posttrain.dpo.config.reference import SeparateReference
from posttrain.errors import ModelError
from posttrain.models.load import choose_backend


def load_separate(config: DPOConfig, reference: SeparateReference) -> Any:
    """The model, with its adapter if it has one; nothing of it is trainable. ModelError where it cannot be loaded."""
    backend = choose_backend(reference)
    return backend.load_for_inference(reference, reference.adapter, chatml=_chatml(config)).model


def require_same_tokens(config: DPOConfig, tokenizer: Any) -> None:
    """Raise ModelError where the reference is a model that does not know the tokens of `tokenizer` by the same ids."""
    reference = config.reference
    if not isinstance(reference, SeparateReference):
        return
    other = choose_backend(reference).load_tokenizer(reference, chatml=_chatml(config))
    if other.get_vocab() != tokenizer.get_vocab():
        raise ModelError(
            f"reference.name: {reference.name} has other tokens than {config.model.name}, so that it cannot judge the "
            "same answers; choose a model of the same tokenizer, with the same added_tokens"
        )


def _chatml(config: DPOConfig) -> bool:
    return config.chat.template == "chatml"
