"""Launches that would shard the model are refused, as no recipe can train it sharded."""

import pytest

from posttrain.errors import ConfigError
from posttrain.train.parallel import require_unsharded


@pytest.mark.parametrize(
    ("variable", "kind"), [("ACCELERATE_USE_FSDP", "FSDP"), ("ACCELERATE_USE_DEEPSPEED", "DeepSpeed")]
)
def test_what_would_be_sharded_is_refused_by_name(monkeypatch, variable, kind):
    monkeypatch.setenv(variable, "true")
    with pytest.raises(ConfigError, match=f"accelerate launch requested {kind}, but toolkit-sft does not"):
        require_unsharded("toolkit-sft")
    monkeypatch.setenv(variable, "false")
    require_unsharded("toolkit-sft")
