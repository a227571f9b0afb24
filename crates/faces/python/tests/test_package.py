"""What is installed: a wheel with stubs that say what is there, docstrings, and examples that run."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import polyrail
import pytest
from polyrail import _polyrail

INSTALLED = Path(polyrail.__file__).parent
EXAMPLES = Path(__file__).parent.parent / "examples"
PAGES = [Path(__file__).parents[1] / "README.md", Path(__file__).parents[4] / "docs/python.md"]


def test_the_package_is_the_installed_one():
    assert sys.prefix in str(INSTALLED) and (INSTALLED / "py.typed").exists()
    assert polyrail.__version__
    assert all(hasattr(polyrail, name) for name in polyrail.__all__)


def stubs():
    tree = ast.parse((INSTALLED / "_polyrail.pyi").read_text())
    return {one.name: one for one in tree.body if isinstance(one, ast.ClassDef) and one.name[0] != "_"}


def parameters(stub):
    every = stub.args
    more = [every.kwarg] if every.kwarg else []
    return {one.arg for one in every.posonlyargs + every.args + every.kwonlyargs + more}


def test_the_stubs_name_every_class_and_no_other():
    classes = {name for name, one in vars(_polyrail).items() if inspect.isclass(one)}
    assert classes == set(stubs()) and classes <= set(polyrail.__all__)


@pytest.mark.parametrize("name", sorted(stubs()))
def test_the_stubs_name_every_method_and_parameter(name):
    made, stub = getattr(_polyrail, name), stubs()[name]
    methods = {}
    for one in stub.body:
        if isinstance(one, ast.FunctionDef):
            methods[one.name] = one
    public = {method for method in vars(made) if not method.startswith("_")}
    assert public == {method for method in methods if not method.startswith("_")}
    assert made.__doc__
    for method in public:
        one = vars(made)[method]
        assert one.__doc__, f"{name}.{method} has no docstring"
        if callable(one):
            named = set(inspect.signature(one).parameters)
            assert named == parameters(methods[method]), f"{name}.{method}"


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_runs(example):
    run = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_every_program_of_a_page_runs(page):
    programs = page.read_text().split("```python\n")[1:]
    assert programs
    for program in programs:
        if "import torch" not in program:
            exec(compile(program.split("```")[0], page, "exec"), {})
