"""Searches for the fastest setting of each rival, which the benchmarks then compare the toolkit with.

python benchmarks/search.py [--only PART,PART] [--again]

Runs every setting of a part's rival in its newest version, each in its own process and with few steps: rows at once,
precomputed or live references, ways to generate and compilation. Then it runs the two fastest once more, and in the
pinned version as well (see `rivals.VERSIONS`); the better speed of a setting counts. With `--again` it only does that,
from the speeds that are written, in case the machine was busy. Writes the speeds, the fastest, its versions and the
machine to results/rivals.json, part by part. A setting that fails or takes longer than five minutes is written with its
reason. The newest versions are those of the environment that TRL_PYTHON names; `make search` makes it.
"""

import argparse
import importlib
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import measuring
import report
import rivals

PARTS = {"sft": ("--steps", "4"), "dpo": ("--steps", "4"), "grpo": ("--steps", "3"), "predict": ()}
"""The parts, and their options for the search."""
FINALISTS = 2
"""Settings that are run again, in both versions."""
LONGEST = 300.0
"""Seconds for one setting."""
HERE = Path(__file__).parent


def main() -> None:
    """Search, and write after each part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--again", action="store_true", help="run only the two fastest, in both versions")
    options = parser.parse_args()
    parts = options.only.split(",")
    if unknown := set(parts) - PARTS.keys():
        parser.error(f"--only {','.join(sorted(unknown))}: the parts are {','.join(PARTS)}")
    measuring.python_of("TRL newest")  # before anything is measured
    for part in parts:
        before = rivals.read()
        if options.again and part not in before:
            parser.error(f"--again: {part} has no speeds yet")
        found = before | {part: search(part, before[part] if options.again else None)}
        rivals.FILE.write_text(json.dumps(found, indent=1) + "\n")
        sys.stdout.write(f"{part}: {found[part]['fastest']}\n")


def search(part: str, before: dict[str, Any] | None) -> dict[str, Any]:
    """Run all settings of a part's rival in its newest version, and the fastest of them again in both.

    Args:
        part: the name of its benchmark.
        before: what an earlier search found, whose settings are not all run again.

    Raises:
        SystemExit: none of them ran.
    """
    module = importlib.import_module(part)
    speeds: dict[str, float] = {} if before is None else before["speeds"]
    failed: dict[str, str] = {} if before is None else before["failed"]

    def measure(run: str) -> None:
        try:
            numbers = measuring.in_a_process(run, *PARTS[part], script=HERE / f"{part}.py", longest=LONGEST)
            speeds[run] = max(round(numbers[module.SPEED], 3), speeds.get(run, 0.0))
        except (SystemExit, subprocess.TimeoutExpired) as error:
            failed[run] = reason(error)
        sys.stderr.write(f"{part}: {run}: {speeds.get(run, failed.get(run))}\n")

    if before is None:
        for run in filter(rivals.is_newest, module.RIVALS):
            measure(run)
    newest = filter(rivals.is_newest, speeds)
    for run in sorted(newest, key=speeds.__getitem__, reverse=True)[:FINALISTS]:
        measure(rivals.in_pinned(run))
        measure(run)
    if not speeds:
        raise SystemExit(f"{part}: no setting of the rival ran")
    fastest = max(speeds, key=speeds.__getitem__)
    return {
        "fastest": fastest,
        "versions": report.versions_of(fastest),
        "figure": module.SPEED,
        "speeds": speeds,
        "failed": failed,
        "processor": report.processor(),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }


def reason(error: BaseException) -> str:
    """Why a setting has no speed, in one line."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"not done after {LONGEST:.0f} s"
    lines = [line.strip() for line in str(error).splitlines() if "Error" in line]
    return lines[-1][:200] if lines else str(error).strip().splitlines()[-1][:200]


if __name__ == "__main__":
    main()
