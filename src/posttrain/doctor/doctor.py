"""`toolkit-doctor`: run the checks, tell what each found, and mend what it is asked to mend."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path

from posttrain.base.console import console
from posttrain.base.secrets import without_secrets
from posttrain.base.text import on_one_line
from posttrain.config.load import load_config
from posttrain.data.config_kind import config_kind
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.doctor import machine, packages, places, training
from posttrain.doctor.findings import Asked, Finding
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.errors import ConfigError, RunError
from posttrain.rl.config import RLConfig
from posttrain.sft.config import SFTConfig

Check = Callable[[Asked], Finding]

# `neighbours` comes before the checks that keep the cores busy themselves.
CHECKS: Mapping[str, Check] = {
    "python": packages.python,
    "packages": packages.packages,
    "pins": packages.pins,
    "neighbours": machine.neighbours,
    "torch": packages.torch_builds,
    "vllm": packages.vllm,
    "unsloth": packages.unsloth,
    "cuda": machine.cuda,
    "bfloat16": machine.bfloat16,
    "threads": machine.threads,
    "compiler": machine.compiler,
    "folders": places.folders,
    "locks": places.locks,
    "ports": places.ports,
    "tokens": places.tokens,
    "model": places.model,
    "disk": training.disk,
    "memory": training.memory,
    "steps": training.steps,
}
CONFIGS = {"sft": SFTConfig, "dpo": DPOConfig, "rl": RLConfig, "dataserver": DataserverConfig}
_STDERR = 2
"""Where commands print, as stdout may be read as JSON."""
_WIDTH = max(map(len, CHECKS))


@dataclass(frozen=True)
class Request:
    """What is wanted.

    Attributes:
        only: names of checks to run; all if it is empty.
        mend: names of checks whose commands are to be run.
        as_json: whether the findings are printed as JSON rather than as lines.
    """

    only: Sequence[str] = ()
    mend: Sequence[str] = ()
    as_json: bool = False


def doctor(path: Path | None, overrides: Sequence[str], request: Request) -> None:
    """Run checks, for the config in `path` if it is given.

    Raises:
        ConfigError: the config or the name of a check is wrong, or a check has nothing that could be mended by it.
        RunError: something is broken.
    """
    names = _chosen([*request.only, *request.mend]) or list(CHECKS)
    asked = _asked(path, overrides)
    found: dict[str, Finding] = {}
    for name in names:
        found[name] = CHECKS[name](asked)
        if not request.as_json:
            _tell(name, found[name])
        if name in request.mend:
            found[name] = _mended(name, found[name], asked, request.as_json)
    if request.as_json:
        rows = [{"check": name, **asdict(finding)} for name, finding in found.items()]
        sys.stdout.write(without_secrets(json.dumps(rows, ensure_ascii=False, indent=2)) + "\n")
    broken, slow = ([name for name in found if found[name].state == state] for state in ("broken", "slow"))
    if broken:
        raise RunError(f"broken: {', '.join(broken)}")
    if not request.as_json:
        console.print(f"nothing is broken; slow: {', '.join(slow)}" if slow else "nothing is broken or slow")


def _chosen(names: Sequence[str]) -> list[str]:
    for name in names:
        if name not in CHECKS:
            near = get_close_matches(name, CHECKS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"there is no check {on_one_line(name)}{hint}; the checks are: {', '.join(CHECKS)}")
    return [name for name in CHECKS if name in names]


def _asked(path: Path | None, overrides: Sequence[str]) -> Asked:
    if path is None:
        if overrides:
            raise ConfigError("--set changes a config, so name one")
        return Asked()
    kind = config_kind(path)
    return Asked(path, kind, load_config(path, CONFIGS[kind], overrides))


def _tell(name: str, finding: Finding) -> None:
    console.print(without_secrets(f"{finding.state:<10}{name:<{_WIDTH}}  {on_one_line(finding.told)}"))
    lines = [finding.mend and f"{'in your shell: ' if finding.in_shell else ''}{finding.mend}", finding.advice]
    for line in filter(None, lines):
        console.print(without_secrets(f"{'':<{10 + _WIDTH}}  → {on_one_line(line)}"))


def _mended(name: str, finding: Finding, asked: Asked, quiet: bool) -> Finding:
    """Run the command of a finding, and check again; ConfigError if there is none that can be run from here."""
    if finding.state == "fine" and not finding.mend:
        return finding
    if finding.in_shell:
        raise ConfigError(f"--mend {name}: only you can do that, in your shell: {finding.mend}")
    if not finding.mend:
        raise ConfigError(f"--mend {name}: there is no command for it ({finding.state}: {finding.told})")
    console.print(f"running: {finding.mend}")
    done = subprocess.run(["/bin/sh", "-c", finding.mend], check=False, stdout=_STDERR)
    if done.returncode:
        raise RunError(f"--mend {name}: the command ended with exit code {done.returncode}")
    after = CHECKS[name](Asked(asked.path, asked.kind, asked.config))  # measured anew
    if not quiet:
        _tell(name, after)
    return after
