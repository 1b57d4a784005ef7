"""Importing a user's Python file, or refusing it with one message."""

from pathlib import Path

import pytest

from posttrain.base.user_code import import_file
from posttrain.errors import ConfigError


def test_a_file_is_imported_with_what_lies_beside_it(tmp_path: Path):
    (tmp_path / "beside_it.py").write_text("NUMBER = 3\n")
    (tmp_path / "mine.py").write_text("from beside_it import NUMBER\n")
    assert import_file(tmp_path / "mine.py").NUMBER == 3


@pytest.mark.parametrize("line", ["import toolkit", "from toolkit.dataserver.schemas import GradeItem"])
def test_a_file_written_for_the_package_as_it_was_called_before_is_told_the_new_name(tmp_path: Path, line: str):
    (tmp_path / "mine.py").write_text(f"{line}\n")
    with pytest.raises(ConfigError, match=r"mine\.py cannot be imported: it imports toolkit\S*, .* called posttrain"):
        import_file(tmp_path / "mine.py")


def test_a_file_that_lacks_another_package_is_told_which(tmp_path: Path):
    (tmp_path / "mine.py").write_text("import no_such_package\n")
    with pytest.raises(ConfigError, match=r"mine\.py cannot be imported: .*no_such_package"):
        import_file(tmp_path / "mine.py")
