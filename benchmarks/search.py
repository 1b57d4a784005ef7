"""Searches for the fastest setting of each rival, which the benchmarks then compare the toolkit with.

python benchmarks/search.py [--only PART,PART]

Runs every setting of a part's rival in its newest version, each in its own process and with few steps: rows at once,
precomputed or live references, kinds of loss, ways to generate and compilation. Then it runs the two fastest in the
pinned version as well (see `rivals.VERSIONS`). Writes the speeds, the fastest, its versions and the machine to
results/rivals.json, part by part. A setting that fails or takes longer than five minutes is written with its reason.
The newest versions are those of the environment that TRL_PYTHON names; `make search` makes it.
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
AGAIN = 2
"""Settings that are run in the pinned version too."""
LONGEST = 300.0
"""Seconds for one setting."""
HERE = Path(__file__).parent


def main() -> None:
    """Search, and write after each part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parts = parser.parse_args().only.split(",")
    if unknown := set(parts) - PARTS.keys():
        parser.error(f"--only {','.join(sorted(unknown))}: the parts are {','.join(PARTS)}")
    measuring.python_of("TRL newest")  # before anything is measured
    for part in parts:
        found = rivals.read() | {part: search(part)}
        rivals.FILE.write_text(json.dumps(found, indent=1) + "\n")
        sys.stdout.write(f"{part}: {found[part]['fastest']}\n")


def search(part: str) -> dict[str, Any]:
    """Run all settings of a part's rival in its newest version, and the fastest of them in the pinned one.

    Raises:
        SystemExit: none of them ran.
    """
    module = importlib.import_module(part)
    speeds: dict[str, float] = {}
    failed: dict[str, str] = {}

    def measure(run: str) -> None:
        try:
            numbers = measuring.in_a_process(run, *PARTS[part], script=HERE / f"{part}.py", longest=LONGEST)
            speeds[run] = round(numbers[module.SPEED], 3)
        except (SystemExit, subprocess.TimeoutExpired) as error:
            failed[run] = reason(error)
        sys.stderr.write(f"{part}: {run}: {speeds.get(run, failed.get(run))}\n")

    for run in filter(rivals.is_newest, module.RIVALS):
        measure(run)
    for run in sorted(speeds, key=speeds.__getitem__, reverse=True)[:AGAIN]:
        measure(rivals.in_pinned(run))
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
