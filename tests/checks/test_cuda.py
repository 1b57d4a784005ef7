"""What `make cuda-pins` asks pip for."""

import runpy
from pathlib import Path
from types import SimpleNamespace

CHECK = SimpleNamespace(**runpy.run_path(str(Path(__file__).parent.parent.parent / "checks" / "cuda.py")))


def test_trainer_engine_and_dataserver_are_resolved_together_with_the_cuda_build_of_torch() -> None:
    asked = CHECK.requirements()
    assert {"vllm==0.30.0", "torch===2.13.0"} <= set(asked)
    assert any(text.startswith("fastapi") for text in asked)
    assert not any("posttrain" in text for text in asked)


def test_nothing_is_installed_and_the_machine_is_named_in_full() -> None:
    command = CHECK.command("none", Path("report.json"))
    assert command[2:4] == ["pip", "install"]
    assert {"--dry-run", "--ignore-installed", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64"} <= set(command)
    assert command[command.index("--constraint") + 1].endswith("constraints-cuda.txt")
