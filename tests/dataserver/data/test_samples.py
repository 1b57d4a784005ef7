"""A sample id names a row and its content; the gold answer never leaves the server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataserver.dataserver_cases import make_config, write_rows
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.data.loading import load_datasets
from posttrain.dataserver.data.samples import Samples
from posttrain.dataserver.data.sampling import Slot, split_rows
from posttrain.errors import DataError

TRICKY = "a:b: ünï"
"""The name of a data set that looks like part of a sample id."""


def serve(config: DataserverConfig) -> Samples:
    datasets = load_datasets(config, lambda line: None)
    return Samples(config, datasets, split_rows(config, datasets))


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    folder = tmp_path_factory.mktemp("data")
    write_rows(folder / "sums.jsonl", [{"prompt": f"question {n}", "answer": f"gold-{n}"} for n in range(20)])
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "r"}]
    write_rows(folder / "talk.jsonl", [{"messages": talk, "tools": [{"name": "add"}], "answer": 7}])
    datasets = {
        "sums": {"validation_fraction": 0.2, "system": "Be short."},
        TRICKY: {"path": "talk.jsonl", "gold": {"column": "answer"}},
    }
    return serve(make_config(folder, datasets))


def test_a_sample_leads_back_to_its_row(samples: Samples) -> None:
    for slot in [Slot(5, "sums", 3), Slot(0, "sums", 19), Slot(2, TRICKY, 0)]:
        sample = samples.sample(slot)
        target = samples.target(sample.sample_id)
        assert (sample.dataset, sample.slot) == (target.dataset, slot.slot) == (slot.dataset, slot.slot)
        assert target.row.index == slot.index
        assert target.prompt == sample.messages[-1].content
        assert sample.sample_id == samples.sample_id(slot.dataset, slot.index)
    assert samples.target(samples.sample_id("sums", 3)).gold == "gold-3"
    assert samples.target(samples.sample_id(TRICKY, 0)).gold == 7


def test_the_gold_is_not_sent(samples: Samples) -> None:
    for index in range(20):
        sent = samples.sample(Slot(0, "sums", index)).model_dump_json()
        assert f"question {index}" in sent
        assert "gold" not in sent


def test_the_messages_are_sent_with_system_and_tools(samples: Samples) -> None:
    sums, talk = samples.sample(Slot(0, "sums", 0)), samples.sample(Slot(0, TRICKY, 0))
    assert [(message.role, message.content) for message in sums.messages] == [
        ("system", "Be short."),
        ("user", "question 0"),
    ]
    assert sums.tools is None
    assert [message.role for message in talk.messages] == ["user", "assistant", "user"]
    assert talk.tools == [{"name": "add"}]
    assert samples.target(talk.sample_id).prompt == "r"


def test_a_row_knows_whether_it_is_held_out(samples: Samples) -> None:
    held_out = [samples.target(samples.sample_id("sums", index)).is_held_out for index in range(20)]
    assert held_out.count(True) == 4
    assert not samples.target(samples.sample_id(TRICKY, 0)).is_held_out


@pytest.mark.parametrize(
    "change",
    [
        lambda dataset, key, digest: f"other:{key}:{digest}",
        lambda dataset, key, digest: f"{dataset}:21:{digest}",
        lambda dataset, key, digest: f"{dataset}:0{key}:{digest}",
        lambda dataset, key, digest: f"{dataset}:-1:{digest}",
        lambda dataset, key, digest: f"{dataset}:{key}",
        lambda dataset, key, digest: key,
        lambda dataset, key, digest: "",
    ],
)
def test_an_id_that_names_no_row_is_unknown(change, samples: Samples) -> None:
    with pytest.raises(DataError, match=r"^unknown sample"):
        samples.target(change(*samples.sample_id("sums", 3).split(":")))


@pytest.mark.parametrize(
    "change",
    [
        lambda dataset, key, digest: f"{dataset}:5:{digest}",
        lambda dataset, key, digest: f"{dataset}:{key}:{digest.upper()}x",
        lambda dataset, key, digest: f"{dataset}:{key}:",
    ],
)
def test_an_id_that_names_another_content_is_stale(change, samples: Samples) -> None:
    with pytest.raises(DataError, match="has changed since it was sampled"):
        samples.target(change(*samples.sample_id("sums", 3).split(":")))


@given(st.text() | st.lists(st.sampled_from(["sums", TRICKY, "1", "²", "9" * 30, "\ud800", "-0"])).map(":".join))
def test_any_text_is_refused_in_printable_words(samples: Samples, text: str) -> None:
    with pytest.raises(DataError) as error:
        samples.target(text)
    assert str(error.value).isprintable() and len(str(error.value)) < 2000
