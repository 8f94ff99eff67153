"""config.toml: its settings, and the error message if it cannot be read or is invalid."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from rankroom import config
from rankroom.errors import UsageError

OTHERWISE = 4.0  # seconds, by default


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("RANKROOM_HANG_SECONDS", raising=False)
    path = config.config_file()
    path.parent.mkdir(parents=True)
    return path


def test_a_setting_is_read_where_there_is_a_file(file: Path):
    assert config.hang_seconds() == OTHERWISE
    file.write_text("hang_seconds = 7\n")
    assert config.hang_seconds() == 7


@pytest.mark.parametrize("content", [b"hang_seconds = \n", b"# \xff\n"])
def test_the_error_for_invalid_toml_asks_to_correct_the_file(file: Path, content: bytes):
    file.write_bytes(content)
    words = f"cannot read {re.escape(str(file))}: .+; correct the file or remove it$"
    with pytest.raises(UsageError, match=words):
        config.hang_seconds()


def test_the_error_for_an_unreadable_file_does_not_call_it_invalid(
    file: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(path: Path, *about: object) -> str:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    monkeypatch.setattr(Path, "read_text", refuse)
    words = f"cannot read {re.escape(str(file))}: Too many open files; .*`ulimit -n`"
    with pytest.raises(UsageError, match=words) as caught:
        config.hang_seconds()
    assert "correct the file" not in str(caught.value)


@pytest.mark.parametrize("line", ["keep-days = 365", "keep_day = 365", "[rankroom]\nkeep_gb = 500"])
def test_an_unknown_setting_is_refused_with_the_valid_ones(file: Path, line: str):
    file.write_text(f"{line}\n")
    words = (
        "has a setting '(keep-days|keep_day|rankroom)' that does not exist; there are keep_days,"
    )
    with pytest.raises(UsageError, match=words):
        config.keep_days()


def test_modules_to_preload_may_be_a_list(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RANKROOM_PRELOAD", raising=False)
    file.write_text('preload = ["torch", "horovod.torch"]\n')
    assert config.preload() == "torch horovod.torch"
    file.write_text("preload = true\n")
    with pytest.raises(UsageError, match=r"preload in .* is True: set it to text, or to a list"):
        config.preload()


def test_all_settings_of_the_file_are_described():
    page = (Path(__file__).parents[3] / "docs" / "settings.md").read_text()
    table = page.partition("These are variables only")[0]
    described = re.findall(r"^\| `RANKROOM_\w+` \| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(described) == sorted(config.SETTINGS)
