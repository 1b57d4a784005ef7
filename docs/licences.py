"""Writes docs/licences.md: the licence of each package that is installed with the toolkit.

python docs/licences.py            # write the page; exit code 1 where a licence is not one of those allowed
python docs/licences.py --check    # write nothing; exit code 1 also where the page is out of date
"""

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "licences.md"

# What asks for nothing but that notices stay with the code; MPL-2.0 asks for changes of its own files besides.
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
    "MIT-CMU",
    "MPL-2.0",
    "PSF-2.0",
}

# Used as they are, as libraries, and not passed on with the toolkit: that is all that the LGPL asks for.
EXCEPTIONS = {
    "pebble": "LGPL",
    "psycopg": "LGPL-3.0-only",
    "psycopg-binary": "LGPL-3.0-only",
    "unsloth-zoo": "LGPL-3.0-or-later",
}

# These say nothing in their metadata; what they have in their licence file.
READ_BY_HAND = {"openai-harmony": "Apache-2.0", "zss": "BSD-3-Clause"}

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

| package | version | licence |
|---|---|---|
"""


def pinned() -> dict[str, str]:
    """Each package of constraints-cpu.txt, by the name that stands there, and its version."""
    lines = (ROOT / "constraints-cpu.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def normal_name(name: str) -> str:
    """The one spelling of a package's name by which pip compares them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def licence_of(package: Distribution) -> str:
    """As an SPDX expression where the package says enough for one; `unknown` where it says nothing."""
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
    """Whether a package may be used under its licence: of each part that is joined by AND one choice is allowed."""
    if EXCEPTIONS.get(normal_name(name)) == licence:
        return True
    return all(not ALLOWED.isdisjoint(part.split(" OR ")) for part in licence.split(" AND "))


def licences() -> dict[str, str]:
    """The licence of each pinned package; `not installed` where it is not there to say."""
    found = {}
    for name in pinned():
        try:
            found[name] = licence_of(distribution(name))
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def rendered() -> dict[Path, str]:
    """The page and what it holds."""
    versions = pinned()
    rows = [f"| {name} | {versions[name]} | {licence} |\n" for name, licence in licences().items()]
    return {PAGE: _HEAD + "".join(rows)}


def main() -> None:
    """Write or check the page, and say what is not allowed."""
    wrong = [
        f"{name}: {licence} is not allowed" for name, licence in licences().items() if not is_allowed(name, licence)
    ]
    text = rendered()[PAGE]
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
        wrong.append(f"{PAGE.relative_to(ROOT)} is out of date: python docs/licences.py")
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main()
