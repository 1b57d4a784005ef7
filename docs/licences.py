"""Writes docs/licences.md: the licence of each package that is installed with the toolkit.

python docs/licences.py            # write the page; exit code 1 if a licence is not allowed
python docs/licences.py --check    # write nothing; exit code 1 also if the page is out of date
"""

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "licences.md"
PINS, EXTRAS = "constraints-cpu.txt", "constraints-extras.txt"

# Licences that only require notices to stay with the code; MPL-2.0 also requires sharing changes to its own files.
ALLOWED = {
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CNRI-Python",
    "ISC",
    "MIT",
    "MIT-0",
    "MIT-CMU",
    "MPL-2.0",
    "PSF-2.0",
}

# Used unmodified, as libraries, and not distributed with the toolkit: the LGPL asks for no more than that.
EXCEPTIONS = {
    "chardet": "LGPL-2.1-or-later",
    "dominate": "GNU Lesser General Public License v3 (LGPLv3)",
    "pebble": "LGPL",
    "psycopg": "LGPL-3.0-only",
    "psycopg-binary": "LGPL-3.0-only",
    "unsloth-zoo": "LGPL-3.0-or-later",
}

# Packages with no licence in their metadata; these are from their licence files.
READ_BY_HAND = {"openai-harmony": "Apache-2.0", "word2number": "MIT", "zss": "BSD-3-Clause"}

_TROVE = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "GNU Library or Lesser General Public License (LGPL)": "LGPL",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
_FREE_TEXT = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "BSD": "BSD",
}

_HEAD = """\
<!-- Written by docs/licences.py from the metadata of the installed packages. -->

# Licences

The toolkit itself is under the Apache License 2.0. This is what `constraints-cpu.txt` installs, for training, serving
and development together, by the licences that the packages name themselves. A new package whose licence is not one of
those in `docs/licences.py` fails the tests; [security](security.md) says more.

"""
_EXTRAS_HEAD = """
## Trackers, lm_eval and object stores

`constraints-extras.txt` adds these, for the extras `wandb`, `trackio`, `mlflow`, `lm-eval` and `remote`.

"""
_TABLE = "| package | version | licence |\n|---|---|---|\n"


def pinned(file: str = PINS) -> dict[str, str]:
    """The version of each package in a file of constraints, by its name there."""
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def normal_name(name: str) -> str:
    """The normalised name of a package, by which pip compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def licence_of(package: Distribution) -> str:
    """The licence, as an SPDX expression if the package says enough for one; `unknown` if it says nothing."""
    name, metadata = normal_name(package.metadata["Name"]), package.metadata.json
    if name in READ_BY_HAND:
        return READ_BY_HAND[name]
    said = str(metadata.get("license_expression") or metadata.get("license") or "")
    try:
        return canonicalize_license_expression(said)
    except InvalidLicenseExpression:
        pass
    if said.strip() in _FREE_TEXT:
        return _FREE_TEXT[said.strip()]
    classes = [each.rpartition(" :: ")[2] for each in metadata.get("classifier", []) if "License ::" in each]
    known = [_TROVE.get(each, each) for each in classes if each != "DFSG approved"]
    return " OR ".join(known) or "unknown"


def is_allowed(name: str, licence: str) -> bool:
    """Whether a package may be used under its licence: each part joined by AND has an allowed choice."""
    if EXCEPTIONS.get(normal_name(name)) == licence:
        return True
    return all(not ALLOWED.isdisjoint(part.strip("()").split(" OR ")) for part in licence.split(" AND "))


def licences(file: str = PINS) -> dict[str, str]:
    """The licence of each pinned package, or `not installed`.

    They are in an environment of their own (`make test-extras`). Elsewhere, their licences are those that the
    page gives for the same versions.
    """
    told = PAGE.read_text(encoding="utf-8").splitlines() if file == EXTRAS else []
    found = {}
    for name, version in pinned(file).items():
        start = f"| {name} | {version} | "
        from_page = next((line.removeprefix(start).removesuffix(" |") for line in told if line.startswith(start)), None)
        try:
            found[name] = licence_of(distribution(name))
        except PackageNotFoundError:
            found[name] = from_page or "not installed"
    return found


def rendered() -> dict[Path, str]:
    """The page and its text."""
    return {PAGE: _HEAD + _table(PINS) + _EXTRAS_HEAD + _table(EXTRAS)}


def _table(file: str) -> str:
    versions = pinned(file)
    rows = [f"| {name} | {versions[name]} | {licence} |\n" for name, licence in licences(file).items()]
    return _TABLE + "".join(rows)


def main() -> None:
    """Write or check the page, and report what is not allowed."""
    found = {**licences(), **licences(EXTRAS)}
    wrong = [f"{name}: {licence} is not allowed" for name, licence in found.items() if not is_allowed(name, licence)]
    text = rendered()[PAGE]
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
        wrong.append(f"{PAGE.relative_to(ROOT)} is out of date: python docs/licences.py")
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main()
