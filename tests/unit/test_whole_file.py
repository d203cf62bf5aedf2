"""Files that are written whole or not at all, and what is told when the disk refuses one."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from attnspec.errors import JournalError
from attnspec.record.whole_file import refused, replacing, unwritable


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")

    def fill_the_disk() -> None:
        with replacing(path) as stream:
            stream.write(b"half")
            raise OSError(28, "No space left on device")

    with pytest.raises(JournalError, match="no space left"):
        fill_the_disk()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("place", ["none/a.json", "file/a.json"])
def test_a_place_that_is_no_folder_is_told(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match=rf"{place}: cannot be written \(No"), replacing(tmp_path / place):
        pass


GOES_ON = "what was measured is safe in the journal, and running again goes on from there"


@pytest.mark.parametrize(
    ("number", "told", "code"),
    [
        (errno.ENOSPC, f"a: no space left (No space left on device); {GOES_ON} once there is room", 1),
        (errno.EDQUOT, f"a: no space left (Disk quota exceeded); {GOES_ON} once there is room", 1),
        (errno.EFBIG, f"a: no space left (File too large); {GOES_ON} once there is room", 1),
        (errno.EROFS, "a: the run folder is not writable (Read-only file system); choose another with --out", 2),
        (errno.EACCES, "a: the run folder is not writable (Permission denied); choose another with --out", 2),
        (errno.EIO, f"a: cannot be written (Input/output error); {GOES_ON}", 1),
        (errno.ENOENT, "a: cannot be written (No such file or directory)", 1),
    ],
)
def test_what_is_told_when_the_disk_refuses(number: int, told: str, code: int) -> None:
    error = refused(Path("a"), OSError(number, os.strerror(number)))
    assert (str(error), error.exit_code) == (told, code)


def test_what_no_number_tells_is_told_in_its_own_words() -> None:
    assert str(refused(Path("a"), OSError("it is odd"))) == "a: cannot be written (it is odd)"


def test_a_folder_that_takes_nothing_is_one_that_another_can_replace() -> None:
    full, odd = (unwritable(Path("a"), OSError(number, os.strerror(number))) for number in (28, errno.ENAMETOOLONG))
    assert str(full).startswith("a: no space left")
    assert odd.exit_code == 2
    assert str(odd).endswith("not writable (File name too long); choose another with --out")
