"""Pipelines to run, and the command in this process; its steps are processes of their own."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pipeline.pipeline_cases import Case, write_commands, write_training
from posttrain.cli.pipeline import main


def run_pipeline(case: Case, *arguments: str, expect: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(case.config), *arguments])
    assert result.exit_code == expect, result.output
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def run() -> Callable[..., Result]:
    """`run(case, *arguments)` runs toolkit-pipeline in this process; `expect` is its exit code."""
    return run_pipeline


@pytest.fixture
def commands(tmp_path: Path) -> Case:
    """A pipeline of three programs that take no time, not run yet."""
    return write_commands(tmp_path)


@pytest.fixture(scope="session")
def trained(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A pipeline that has trained, measured and decided; not to be changed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        case = write_training(tmp_path_factory.mktemp("trained"), tiny_model)
        run_pipeline(case)
    return case


@pytest.fixture
def copied(trained: Case, tmp_path: Path) -> Case:
    """A copy of the pipeline that has trained, in another place."""
    shutil.copytree(trained.folder, tmp_path / "copy")
    return Case(tmp_path / "copy")


@pytest.fixture
def plan(run: Callable[..., Result]) -> Callable[[Case], dict[str, str]]:
    """`plan(case)`: the first word of what each step would do, by step."""

    def plan_(case: Case, *arguments: str) -> dict[str, str]:
        from posttrain.config.load import load_config
        from posttrain.pipeline.config import PipelineConfig
        from posttrain.pipeline.pipeline import Wanted, open_context
        from posttrain.pipeline.plan import plan as plan_steps
        from posttrain.pipeline.records import Records

        context = open_context(load_config(case.config, PipelineConfig, arguments), "chain", Wanted())
        return {each.name: each.state for each in plan_steps(context, Records(context.folder))}

    return plan_
