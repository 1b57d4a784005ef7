"""Runs the benchmarks and shows targets and results in one table: what `make bench` runs.

python benchmarks/run.py [--only PART,PART] [--short] [--output DIR]

All parts run but `rollouts`, unless named. Writes results.json, results.md and results.png. Exits with code 1 if the
two sides compute different results or a part fails; a missed speed or memory target is shown in the table and is not a
failure. `--short` only checks that the results agree, on little data.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measuring import MODEL, whole_rounds
from report import Finding, describe_machine, findings_table, plot
from targets import TARGETS, Target

HERE = Path(__file__).parent
PARTS = ("start", "predict", "merge", "sft", "dpo", "grpo", "rollouts", "dataserver")


def main() -> None:
    """Measure, judge, print and write."""
    options = read_options()
    options.output.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    tables = {part: run_part(part, options) for part in options.only}
    numbers = {part: read_numbers(part, options.output) for part, table in tables.items() if table is not None}
    findings = judge(options.only, numbers, short=options.short)
    machine = describe_machine() | {"seconds": round(time.perf_counter() - began)}
    table = findings_table(findings)
    sys.stdout.write(table + "\n")
    results = {"targets": list(map(as_json, findings)), "machine": machine, "numbers": numbers}
    (options.output / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (options.output / "results.md").write_text(page(table, tables, machine))
    if not options.short:
        plot(findings, options.output / "results.png")
    wrong = [finding for finding in findings if finding.target.about_results and not finding.met]
    if wrong or len(numbers) < len(tables):
        raise SystemExit(1)


def read_options() -> argparse.Namespace:
    """The options on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    usual = ",".join(part for part in PARTS if part != "rollouts")  # which takes a quarter of an hour
    parser.add_argument("--only", default=usual, help=f"some of {','.join(PARTS)}; by default {usual}")
    parser.add_argument("--short", action="store_true", help="check the results on little data; judge no times")
    parser.add_argument("--model", default=MODEL, help="a packaged model or a folder")
    parser.add_argument("--output", type=Path, default=HERE.parent / "runs" / "bench", help="folder for the results")
    options = parser.parse_args()
    options.only = options.only.split(",")
    unknown = set(options.only) - set(PARTS)
    if unknown:
        parser.error(f"--only {','.join(sorted(unknown))}: the parts are {','.join(PARTS)}")
    return options


def run_part(part: str, options: argparse.Namespace) -> str | None:
    """Run one benchmark, which writes its numbers to a file; returns its table, or None if it failed."""
    command = [sys.executable, HERE / f"{part}.py", "--model", options.model]
    command += ["--output", numbers_file(part, options.output), *["--short"] * options.short]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    return done.stdout if done.returncode == 0 else None


def numbers_file(part: str, folder: Path) -> Path:
    """The file with the numbers of a part."""
    return folder / f"{part}.json"


def read_numbers(part: str, folder: Path) -> dict[str, Any]:
    """What a part measured."""
    return json.loads(numbers_file(part, folder).read_text())


def judge(parts: Sequence[str], numbers: dict[str, Any], *, short: bool) -> list[Finding]:
    """Every target of these parts; a short run only has figures for those about results."""
    wanted = [target for target in TARGETS if target.part in parts and (target.about_results or not short)]
    return [Finding(target, figures(target, numbers.get(target.part))) for target in wanted]


def figures(target: Target, numbers: dict[str, Any] | None) -> tuple[float, ...]:
    """A target's figure in each round; results are compared once."""
    if numbers is None:
        return ()
    rounds = whole_rounds(numbers)
    return tuple(target.measured(each) for each in (rounds[:1] if target.about_results else rounds))


def as_json(finding: Finding) -> dict[str, Any]:
    """A finding, as written to results.json."""
    target = finding.target
    bound = {"at_most": target.bound} if target.at_least is None else {"at_least": target.bound}
    return {
        "part": target.part,
        "what": target.what,
        **bound,
        "measured": finding.value,
        "met": finding.met,
        "rounds": finding.rounds,
    }


def page(table: str, tables: dict[str, str | None], machine: dict[str, Any]) -> str:
    """The page with all tables and the machine."""
    details = [f"{part} failed." if found is None else found.strip() for part, found in tables.items()]
    facts = "\n".join(f"- {name}: {value}" for name, value in machine.items())
    return "\n\n".join(["# Benchmarks", table, "![times better than the target](results.png)", facts, *details]) + "\n"


if __name__ == "__main__":
    main()
