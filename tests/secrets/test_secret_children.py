"""Processes that run others' code have no secrets in their environment, neither now nor as they started."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from canaries import SECRETS, leaks

from dataserver.sandboxes import SANDBOXES
from dataserver.serving import Server, a_config, serving

# Prints what it finds, for the row's test to compare. The program itself contains no mark.
PROGRAM = """
import os
seen = str(dict(os.environ))
for number in ("self", *filter(str.isdigit, os.listdir("/proc"))):
    for name in ("environ", "cmdline"):
        try:
            seen += open(f"/proc/{number}/{name}").read()
        except OSError:
            continue
print("secrets" if "can" + "ary-" in seen else "nothing")
"""


@pytest.fixture(scope="module", params=SANDBOXES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("children") / "config"
    config = a_config(
        folder,
        datasets={"code": {"path": "code.jsonl", "gold": None, "graders": {"code": 1}}},
        graders={"code": {"type": "code_stdio", "sandbox": request.param}},
        stages=[{"name": "one", "until_step": 4, "mix": {"code": 1}}],
        allow_code_execution=True,
        listen={"token_env": "DATASERVER_TOKEN"},
    )
    row = {"prompt": "Write a program", "tests": [{"input": "1", "output": "nothing"}]}
    (folder / "code.jsonl").write_text(json.dumps(row) + "\n")
    with serving(config, token=SECRETS["DATASERVER_TOKEN"], environment=SECRETS) as server:
        yield server


def test_the_program_of_a_completion_finds_no_secret_in_bubblewrap_or_where_root_started_it(server: Server) -> None:
    (sample,) = server.sample(0, 1).samples
    completion = f"```python\n{PROGRAM}```"
    item = {"item_id": "a", "sample_id": sample.sample_id, "completion": completion}

    (result,) = server.grade([item], "a").results

    # With limits only, a normal user's program has that user's rights; the docs say so.
    is_apart = server.client.get("/meta").json()["sandboxes"]["code"] == "bubblewrap" or os.geteuid() == 0
    assert (result.status, result.reward) == ("ok", float(is_apart)), result
    assert leaks({"log": server.log.read_bytes()}) == []


LOOKS = """
import os
def score(item):
    seen = str(dict(os.environ))
    for process in ("self", os.getppid()):
        seen += open(f"/proc/{process}/environ").read()
    return float("can" + "ary-dataserver" not in seen and "can" + "ary-postgres" not in seen)
"""


def test_a_grading_process_has_none_of_the_secrets_that_the_config_names(tmp_path: Path) -> None:
    config = a_config(
        tmp_path / "config",
        graders={"looks": {"type": "python", "path": "looks.py:score"}},
        datasets={"sums": {"path": "sums.jsonl", "columns": {"prompt": "question"}, "graders": {"looks": 1}}},
        stages=[{"name": "one", "until_step": 4, "mix": {"sums": 1}}],
        listen={"token_env": "DATASERVER_TOKEN"},
    )
    config.with_name("looks.py").write_text(LOOKS)
    with serving(config, token=SECRETS["DATASERVER_TOKEN"], environment=SECRETS) as server:
        (sample,) = server.sample(0, 1).samples
        item = {"item_id": "a", "sample_id": sample.sample_id, "completion": "x"}

        (result,) = server.grade([item], "a").results

    assert (result.status, result.reward) == ("ok", 1.0), result
