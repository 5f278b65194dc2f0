"""Examples in docstrings run, and public functions have one."""

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

import mxgemm

SOURCE = Path(mxgemm.__file__).parent


def modules_with_examples() -> list[str]:
    names = []
    for path in sorted(SOURCE.rglob("*.py")):
        if ">>> " in path.read_text():
            parts = path.relative_to(SOURCE.parent).with_suffix("").parts
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_give_what_they_show(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def public_functions() -> list[str]:
    return [n for n in mxgemm.__all__ if inspect.isfunction(getattr(mxgemm, n))]


@pytest.mark.parametrize("name", public_functions())
def test_public_functions_have_an_example(name):
    assert ">>> " in (getattr(mxgemm, name).__doc__ or "")


def test_every_public_name_is_there_and_documented():
    for name in mxgemm.__all__:
        value = getattr(mxgemm, name)
        assert (value.__doc__ or "").strip(), name
    assert set(mxgemm.__all__) <= set(mxgemm._HOME)
    with pytest.raises(AttributeError, match="no attribute 'quantise'"):
        mxgemm.quantise  # noqa: B018
