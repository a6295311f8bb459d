"""Names of configuration values: equal in every process, and different for what does different things."""

import collections
import enum
import functools
import json
import logging
import math
import pathlib
import subprocess
import sys
import textwrap

import pytest

from mooncake_sidecar import naming

RATE = 2.0
log = logging.getLogger("test")


class Colour(enum.Enum):
    RED = "r"
    BLUE = "b"


class Overrides:
    def __call__(self, config):
        return config


def made(source, **names):
    """What ``f`` is in a module of this source."""
    space = {"__name__": "__main__", **names}
    exec(compile(textwrap.dedent(source), names.get("file", "script.py"), "exec"), space)
    return space["f"]


DIFFERENT = {
    "a constant": ("f = lambda c: c.update(factor=2.0)", "f = lambda c: c.update(factor=4.0)"),
    "its type": ("f = lambda c: (c, 1)", "f = lambda c: (c, True)"),
    "the sign of zero": ("f = lambda c: (c, 0.0)", "f = lambda c: (c, -0.0)"),
    "an attribute": ("f = lambda c: c.a", "f = lambda c: c.b"),
    "a default": ("f = lambda c, x=1: x", "f = lambda c, x=2: x"),
    "a keyword's default": ("f = lambda c, *, x=1: x", "f = lambda c, *, x=2: x"),
    "a global": ("R = 1\nf = lambda c: R", "R = 2\nf = lambda c: R"),
    "a global of a function inside": ("R = 1\nf = lambda c: (lambda: R)()", "R = 2\nf = lambda c: (lambda: R)()"),
    "code inside": ("f = lambda c: (lambda: 1)()", "f = lambda c: (lambda: 2)()"),
    "a function that it calls": ("def g(): return 1\nf = lambda c: g()", "def g(): return 2\nf = lambda c: g()"),
    "what it closes over": ("def g(x): return lambda c: x\nf = g(1)", "def g(x): return lambda c: x\nf = g(2)"),
    "what is wrapped": (
        "import functools\ndef d(g):\n  @functools.wraps(g)\n  def w(c): return g(c)\n  return w\n@d\ndef f(c): return 1",
        "import functools\ndef d(g):\n  @functools.wraps(g)\n  def w(c): return g(c)\n  return w\n@d\ndef f(c): return 2",
    ),
    "a partial's argument": (
        "import functools\nf = functools.partial(lambda x, c: x, 1)",
        "import functools\nf = functools.partial(lambda x, c: x, 2)",
    ),
    "a partial's keyword": (
        "import functools\nf = functools.partial(lambda c, x: x, x=1)",
        "import functools\nf = functools.partial(lambda c, x: x, x=2)",
    ),
    "a partial's function": (
        "import functools\nf = functools.partial(lambda c: 1)",
        "import functools\nf = functools.partial(lambda c: 2)",
    ),
    "a function of Python": ("import math\nf = math.sin", "import math\nf = math.cos"),
    "a module": ("import math as m\nf = lambda c: m.sqrt", "import cmath as m\nf = lambda c: m.sqrt"),
    "what is caught": (
        "def f(c):\n  try: return c()\n  except KeyError: return 1",
        "def f(c):\n  try: return c()\n  except IndexError: return 1",
    ),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_functions_that_differ_have_two_names(what):
    one, other = DIFFERENT[what]
    assert naming.name(made(one)) != naming.name(made(other))
    assert naming.name(made(one)) == naming.name(made(one))


def test_where_a_function_stands_is_nothing():
    source = "R = {'b': 1, 'a': 2}\ndef f(c, x=3):\n  return [R, x, (lambda: c)()]\n"
    moved = "UNUSED = object()\n\n\n# A remark.\n" + source.replace("{'b': 1, 'a': 2}", "{'a': 2, 'b': 1}")
    assert naming.name(made(source)) == naming.name(made(moved, file="other.py"))


def test_functions_that_call_each_other():
    source = "def f(c):\n  return c and g(c - 1)\ndef g(c):\n  return c and f(c - {})\n"
    assert naming.name(made(source.format(1))) == naming.name(made(source.format(1))) != naming.name(made(source.format(2)))


def test_data():
    values = [
        None, True, 1, 1.0, "1", b"1", 1j, ..., [1], (1,), {1}, [1, 2], [2, 1], [[1], 2], {"1": 1}, {1: "1"}, {}, [], "", Colour.RED,
        Colour.BLUE, pathlib.Path("/a"), "/a", {"a": None}, {"a": {"b": 1}}, {"a": 1, "b": 1}, float("nan"), float("inf"),
    ]  # fmt: skip
    assert len({naming.name(value) for value in values}) == len(values)
    assert naming.name({"b": 1, "a": {"d": 1, "c": 2}}) == naming.name({"a": {"c": 2, "d": 1}, "b": 1})
    assert naming.name(collections.OrderedDict(a=1)) == naming.name({"a": 1})


UNSURE = {
    "an object": lambda: object(),
    "a callable instance": lambda: Overrides(),
    "a method": lambda: Overrides().__call__,
    "a class of a script": lambda: Overrides,
    "an object that a function uses": lambda: made("R = object()\nf = lambda c: R"),
    "a module that may be edited": lambda: made("def f(c):\n  import test_naming\n  return test_naming.RATE"),
    "a module next to it": lambda: made("def f(c):\n  from . import rope\n  return rope.R"),
    "inside a partial": lambda: functools.partial(Overrides(), 1),
    "data without end": lambda: made("f = []\nf.append(f)"),
    "a great deal of data": lambda: list(range(200_000)),
}


@pytest.mark.parametrize("what", UNSURE)
def test_what_can_not_be_told_has_no_name(what):
    with pytest.raises(naming.UnnameableError):
        naming.name({"x": UNSURE[what]()})


def test_loggers_and_python_are_no_hindrance():
    naming.name(made("f = lambda c: log.info('%s', json.dumps(math.pi))", log=log, json=json, math=math))


SCRIPT = """
import functools, multiprocessing, sys
from mooncake_sidecar import naming
R = {"x", "y", "z", "factor"}
def g(c): return R
def f(c, *, x=frozenset(["p", "q", "r", "s"])):
    import json
    return [g(c) for _ in (lambda: json)()]
def tell(value): print(naming.name(value), flush=True)
if __name__ == "__main__":
    for value in (f, functools.partial(f, x={"i", "j", "k", "l"})):
        tell(value)
        child = multiprocessing.get_context("spawn").Process(target=tell, args=(value,))
        child.start(); child.join()
        assert child.exitcode == 0
"""


def test_a_spawned_process_has_the_same_names(tmp_path):
    """Its hashes begin at another seed, its script is ``__mp_main__``, and it has imported other modules."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    out = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout.split("\n")
    assert len(out) == 5 and out[0] == out[1] and out[2] == out[3] and out[0] != out[2]
