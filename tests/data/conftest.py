"""Data sets prepared the way training prepares them."""

import pytest


@pytest.fixture
def prepare(own_cache, tmp_path, write_jsonl, tiny_tokenizer):
    """`prepare(rows, **chat)` writes the rows to a file and prepares it; with `rows=None` it keeps the existing file.

    Progress lines are appended to the list `lines`.
    """
    from posttrain.config.sections.chat import ChatConfig
    from posttrain.config.sections.datasets import ColumnsConfig, DatasetConfig
    from posttrain.data.preparation import prepare_dataset

    def call(
        rows,
        *,
        lines=None,
        tokenizer=tiny_tokenizer,
        on_bad_record="error",
        columns=None,
        training_template=None,
        **chat,
    ):
        path = tmp_path / "rows.jsonl"
        if rows is not None:
            write_jsonl(path, rows)
        config = DatasetConfig(path=str(path), columns=columns or ColumnsConfig())
        report = (lambda line: None) if lines is None else lines.append
        return prepare_dataset("d", config, ChatConfig(**chat), tokenizer, on_bad_record, report, training_template)

    return call
