"""Settings: read when asked for, defaults, the list, and the only reader of the environment."""

import ast
from pathlib import Path

import pytest

import mxgemm
from mxgemm import settings

SOURCE = Path(mxgemm.__file__).parent


def test_every_setting_is_listed_once_with_a_purpose():
    declared = [value for value in vars(settings).values() if isinstance(value, settings.Setting)]
    assert set(declared) == set(settings.SETTINGS)
    names = [setting.variable for setting in settings.SETTINGS]
    assert len(set(names)) == len(names)
    assert all(name.startswith("MXGEMM_") for name in names)
    assert all(setting.purpose for setting in settings.SETTINGS)


def test_there_are_at_most_six():
    assert len(settings.SETTINGS) <= 6


@pytest.mark.parametrize("setting", settings.SETTINGS, ids=lambda s: s.variable)
def test_a_setting_is_read_when_asked_for(setting, monkeypatch):
    monkeypatch.delenv(setting.variable, raising=False)
    assert setting.read() == setting.default
    monkeypatch.setenv(setting.variable, "a value")
    assert setting.read() == "a value"
    monkeypatch.setenv(setting.variable, "")
    assert setting.read() == setting.default


def test_cache_dir_expands_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("MXGEMM_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert settings.cache_dir() == tmp_path / ".cache" / "mxgemm"
    monkeypatch.setenv("MXGEMM_CACHE_DIR", "~/kernels")
    assert settings.cache_dir() == tmp_path / "kernels"


def reads_environment(path: Path) -> bool:
    names = {"environ", "getenv", "environb"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in names:
            return True
        if isinstance(node, ast.ImportFrom) and any(alias.name in names for alias in node.names):
            return True
    return False


def test_settings_is_the_only_reader_of_the_environment():
    readers = {str(p.relative_to(SOURCE)) for p in SOURCE.rglob("*.py") if reads_environment(p)}
    assert readers == {"settings.py"}
