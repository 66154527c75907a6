"""Write the reference of the Python API, `docs/reference/python.md`, from the docstrings.

    python docs/make/reference.py            write it
    python docs/make/reference.py --check    fail if it is not as this would write it

The sources are parsed and not imported, so no framework is needed.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python"
PAGE = ROOT / "docs" / "reference" / "python.md"

#: The modules of the page, in its order.
MODULES = [
    "comity",
    "comity.errors",
    "comity.mlx",
    "comity.torch",
    "comity.torch.hooks",
    "comity.torch.ft",
    "comity.torch.diloco",
]
HEAD = """# Python API

`docs/make/reference.py` writes this page from the docstrings. Change those and run it; do not edit the page.

The functions of `comity` act on the group that `comity.init()` returns. The methods of `comity.Group` act on a group that you hold.
"""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
#: Lines that open a list of names in a docstring.
LISTS = re.compile(r"(Args|Attributes|Returns|Raises):$")


def path_of(module: str) -> Path:
    folder = PACKAGE.joinpath(*module.split("."))
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


def tree_of(module: str) -> ast.Module:
    return ast.parse(path_of(module).read_text())


def exported(tree: ast.Module) -> list[str]:
    """The names of `__all__`, or all that do not begin with an underscore."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets
        ):
            return list(ast.literal_eval(node.value))
    return [n.name for n in tree.body if isinstance(n, Definition) and not n.name.startswith("_")]


def found(module: str, name: str) -> Definition | None:
    """The class or function that `name` is in `module`, wherever it is defined."""
    for node in tree_of(module).body:
        if isinstance(node, Definition) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _imported(module, node, alias.name)
    return None


def _imported(module: str, node: ast.ImportFrom, name: str) -> Definition | None:
    origin = node.module or ""
    if node.level:
        is_package = path_of(module).name == "__init__.py"
        parts = module.split(".")[: len(module.split(".")) + is_package - node.level]
        origin = ".".join([*parts, origin] if origin else parts)
    # A module that a package imports from itself has a section of its own.
    if origin == module or not origin.startswith("comity") or not path_of(origin).exists():
        return None
    return found(origin, name)


def prose(text: str | None) -> str:
    """A docstring as Markdown."""
    if not text:
        return ""
    lines, out = inspect.cleandoc(text).splitlines(), []
    in_list, in_code = False, False
    for line in lines:
        if in_code and line and not line.startswith("    "):
            out += ["```", ""]
            in_code = False
        if in_list and line and not line.startswith("    "):
            out.append("")
            in_list = False
        if LISTS.match(line):
            in_list = True
            out += [f"**{line[:-1]}**", ""]
        elif in_code:
            if line or out[-1] != "```python":
                out.append(line[4:])
        elif in_list:
            item = re.match(r"    (\S+): (.*)", line)
            out.append(f"- `{item[1]}`: {item[2]}" if item else f"  {line.strip()}")
        elif line.endswith("::"):
            out += [line[:-1], "", "```python"]
            in_code = True
        else:
            out.append(line)
    if in_code:
        while out[-1] == "":
            out.pop()
        out.append("```")
    text = "\n".join(out)
    # An empty line before the end of a block looks odd.
    return re.sub(r"\n+\n```\n", "\n```\n", text).strip()


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, is_method: bool) -> str:
    arguments = ast.parse(ast.unparse(node)).body[0].args  # type: ignore[attr-defined]
    if is_method and arguments.args:
        arguments.args = arguments.args[1:]
    shown = f"{name}({ast.unparse(arguments)})"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    returns = returns.replace("'", "")
    if len(shown + returns) > 100:
        shown = shown.replace("(", "(\n    ", 1)[:-1].replace(", ", ",\n    ") + ",\n)"
        shown = re.sub(r"\[([^\]]*)\]", lambda m: m[0].replace(",\n    ", ", "), shown)
    return shown + returns


def block(code: str) -> str:
    return f"```python\n{code}\n```"


def is_property(node: ast.FunctionDef) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "property" for d in node.decorator_list)


def parts_of(base: str) -> ast.ClassDef | None:
    """The class of this name in a private module of the package: its methods are those of the public class that is made of it."""
    for file in sorted((PACKAGE / "comity").glob("_*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name == base:
                return node
    return None


def members(node: ast.ClassDef) -> list[ast.stmt]:
    """What a class has, then what it has from private ones."""
    bases = [parts_of(ast.unparse(b)) for b in node.bases]
    return [*node.body, *(m for base in bases if base is not None for m in members(base))]


def of_class(node: ast.ClassDef, name: str) -> list[str]:
    parts = []
    shown = [b for b in map(ast.unparse, node.bases) if parts_of(b) is None]
    bases = ", ".join(b for b in shown if not b.startswith("_"))
    parts.append(block(f"class {name}({bases})" if bases else f"class {name}"))
    parts.append(prose(ast.get_docstring(node, clean=False)))
    for child in members(node):
        if isinstance(child, ast.AnnAssign) and not ast.unparse(child.target).startswith("_"):
            parts.append(f"- `{ast.unparse(child)}`")
        if not isinstance(child, ast.FunctionDef):
            continue
        text = ast.get_docstring(child, clean=False)
        if child.name == "__init__" and child.args.args[1:] + child.args.kwonlyargs:
            if text is None:
                parts.append(block(signature(child, name, True)))
            continue
        if child.name.startswith("_") or not text:
            continue
        parts.append(f"#### {name}.{child.name}")
        if is_property(child):
            kind = f": {ast.unparse(child.returns)}" if child.returns else ""
            parts.append(block(child.name + kind))
        else:
            parts.append(block(signature(child, child.name, True)))
        parts.append(prose(text))
    return parts


def of_module(module: str) -> list[str]:
    tree = tree_of(module)
    parts = [f"## {module}", prose(ast.get_docstring(tree, clean=False))]
    for name in exported(tree):
        node = found(module, name)
        if node is None or (module == "comity" and _is_error(name)):
            continue
        parts.append(f"### {module}.{name}")
        if isinstance(node, ast.ClassDef):
            parts += of_class(node, name)
        else:
            parts.append(block(signature(node, name, False)))
            parts.append(prose(ast.get_docstring(node, clean=False)))
    return parts


def _is_error(name: str) -> bool:
    """They have a section of their own."""
    return name in exported(tree_of("comity.errors"))


def page() -> str:
    parts = [HEAD.strip()]
    for module in MODULES:
        parts += of_module(module)
    return "\n\n".join(p for p in parts if p) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="The reference of the Python API.")
    parser.add_argument("--check", action="store_true", help="fail if the page is not current")
    args = parser.parse_args()
    text = page()
    if not args.check:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        sys.exit(f"{PAGE.relative_to(ROOT)} is not current: run python docs/make/reference.py")


if __name__ == "__main__":
    main()
