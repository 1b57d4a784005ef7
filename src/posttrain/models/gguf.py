"""Convert a `.gguf` file into a model folder, once.

transformers reads GGUF, but dequantises it again at each start (15 s for 135 M weights) and cannot save the result as
it is. The cached folder loads in a fraction of a second, in every backend and in vLLM.
"""

import logging
import shutil
from pathlib import Path
from typing import Any

from posttrain.base.files import atomic_rename_dir, fsync_tree, temporary_sibling
from posttrain.base.text import first_line
from posttrain.errors import ModelError
from posttrain.models.location import conversion_folder, require_all_weights

logger = logging.getLogger(__name__)


def converted_folder(gguf_file: Path) -> Path:
    """The safetensors folder of `gguf_file`, converted now if it is not in the cache yet."""
    folder = conversion_folder(gguf_file)
    if not folder.is_dir():
        logger.info("converting %s once into %s", gguf_file.name, folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = temporary_sibling(folder)
        try:
            _convert(gguf_file, aside)
            fsync_tree(aside)
            atomic_rename_dir(aside, folder)
        except OSError:
            # Another process may have created the same folder first: its files are as good as ours.
            if not folder.is_dir():
                raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return folder


def _convert(gguf_file: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # The config names the file, not what lies beside it: run no code from there, and do not prompt for permission.
    source: dict[str, Any] = {
        "pretrained_model_name_or_path": str(gguf_file.parent),
        "gguf_file": gguf_file.name,
        "trust_remote_code": False,
    }
    try:
        tokenizer = AutoTokenizer.from_pretrained(**source)
        loader: Any = AutoModelForCausalLM.from_pretrained
        model, loading = loader(**source, dtype=torch.bfloat16, output_loading_info=True)
    except Exception as error:  # on a damaged file, the readers may raise anything
        reason = first_line(error)
        raise ModelError(f"model.name: cannot read {gguf_file}: {reason}") from error
    require_all_weights(str(gguf_file), loading["missing_keys"])
    # save_pretrained refuses a model still marked as quantised; the weights no longer are.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    # The tokenizer that transformers reads from the file calls the bos token eos; the ids in the model config come from
    # the file and are right.
    for role in ("bos", "eos", "pad"):
        token_id = getattr(model.config, f"{role}_token_id", None)
        if isinstance(token_id, int):
            setattr(tokenizer, f"{role}_token", tokenizer.convert_ids_to_tokens(token_id))
    _correct_byte_level(tokenizer)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _correct_byte_level(tokenizer: Any) -> None:
    """Correct a byte-level tokenizer: transformers gives every Llama tokenizer settings that suit only SentencePiece.

    Token ids stay the same. But a program that checks `byte_fallback` would take the tokens for SentencePiece pieces,
    and clean-up would remove spaces from the decoded text.
    """
    from tokenizers import decoders, pre_tokenizers

    backend = tokenizer.backend_tokenizer
    if isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel):
        backend.model.byte_fallback = False
        backend.decoder = decoders.ByteLevel()
        tokenizer.clean_up_tokenization_spaces = False
