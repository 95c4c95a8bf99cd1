"""All errors that the package can raise, with their remedies as they stand in its source."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import ips2_dask
from ips2_dask.cli.main import _with_options

PACKAGE = Path(ips2_dask.__file__).parent

KINDS = {
    "BadInput": ("remedy", 4),
    "Unreachable": ("remedy", 4),
    "Lost": ("remedy", 1),
    "Refused": ("message", 0),
    "StoreFailure": ("message", 0),
    "WorkersKilled": ("message", 0),
    "Damaged": ("message", 0),
}
"""The kinds of errors: name and position of the argument with the remedy, which may be the whole message."""

NAMES = re.compile(
    r"--\w|\w=|\w\(|`|::|\bpip install|\bout\b|\w_\w|\w\.\w|\{\}|IPS2|"
    r"\b(run|continue|start|open|give|add|write|set|raise|lower|name|choose|take) "
    r"(it\b|one\b|n_|again|the (run|same|sweep))"
)
"""What a remedy has in it that names an option, a call or a command, or the values of the one that is the thing."""

FILLED = "FILLED"


@dataclasses.dataclass(frozen=True)
class Remedy:
    """One of the remedies of an error in the source; ``{}`` stands for what is filled in."""

    file: str
    thing: str
    text: str

    @property
    def key(self) -> str:
        """The name that tests give it."""
        return f"{self.file}: {self.thing}: {self.text}"

    @property
    def names(self) -> bool:
        """Whether it names an option, a call or a command."""
        return NAMES.search(self.text) is not None

    def fits(self, message: str) -> bool:
        """Whether a message, of Python or of the command line, has this thing and this remedy."""
        text = f"{self.thing}: found . Remedy: {self.text}."
        own, with_name = (one.replace("{}", FILLED) for one in (text, text.replace("{}=", "{} ")))
        return any(all(map(_like, parts(one), parts(message))) for one in (own, with_name, _with_options(own)))


def parts(message: str) -> tuple[str, str]:
    """The thing and the remedy of a message."""
    thing = re.split(r": found |; every finished|: (?=stage )", message.removeprefix("ips2: "), maxsplit=1)[0]
    return thing, message.rpartition("Remedy: ")[2].rstrip(".")


def _like(template: str, text: str) -> bool:
    return re.fullmatch(re.escape(" ".join(template.split())).replace(FILLED, ".*"), text) is not None


@cache
def remedies() -> tuple[Remedy, ...]:
    """Every remedy in the package."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
    makers = {
        (path if name.startswith("_") else None, name): place
        for path, tree in trees.items()
        for name, function in _functions(tree).items()
        if (place := _handed_on(function)) is not None
    }
    return tuple(dict.fromkeys(itertools.chain.from_iterable(_of_file(p, tree, makers) for p, tree in trees.items())))


Makers = dict[tuple[Path | None, str], tuple[str, int]]


def _of_file(path: Path, tree: ast.Module, makers: Makers) -> Iterator[Remedy]:
    for function, call in _calls(tree, None):
        name = _called(call)
        place = KINDS.get(name) or makers.get((path, name)) or makers.get((None, name))
        remedy = None if place is None else _argument(call, *place)
        if place is None or remedy is None or (function is not None and _is_parameter(remedy, function)):
            continue
        scope = Scope(tree, function)
        things = scope.texts(call.args[0]) if call.args and name in KINDS else ["{}"]
        for text in scope.texts(remedy):
            thing = things[0] if len(things) == 1 and place[0] == "remedy" else "{}"
            text = " ".join(text.rpartition("Remedy: ")[2].split()).rstrip(".")
            yield Remedy(str(path.relative_to(PACKAGE)), thing, text)


def _functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def _calls(node: ast.AST, function: ast.FunctionDef | None) -> Iterator[tuple[ast.FunctionDef | None, ast.Call]]:
    """All calls, and the function that each is in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield function, child
        yield from _calls(child, child if isinstance(child, ast.FunctionDef) else function)


def _called(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def _argument(call: ast.Call, name: str, position: int) -> ast.expr | None:
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    return named.get(name) or (call.args[position] if position < len(call.args) else None)


def _is_parameter(value: ast.expr, function: ast.FunctionDef) -> bool:
    return isinstance(value, ast.Name) and value.id in _parameters(function)


def _parameters(function: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def _handed_on(function: ast.FunctionDef) -> tuple[str, int] | None:
    """Name and position of the parameter that a function makes the remedy of an error."""
    for inner, call in _calls(function, function):
        if inner is function and _called(call) in KINDS:
            remedy = _argument(call, *KINDS[_called(call)])
            if isinstance(remedy, ast.Name) and remedy.id in _parameters(function):
                return remedy.id, _parameters(function).index(remedy.id)
    return None


class Scope:
    """The texts that an expression may have, by the assignments and the functions around it."""

    def __init__(self, tree: ast.Module, function: ast.FunctionDef | None) -> None:
        self._tree, self._function = tree, function

    def texts(self, value: ast.expr) -> list[str]:
        """All of them, with ``{}`` for what is known when it runs."""
        if isinstance(value, ast.Constant):
            return [str(value.value)]
        if isinstance(value, ast.IfExp):
            return self.texts(value.body) + self.texts(value.orelse)
        if isinstance(value, ast.JoinedStr):
            pieces = [["{}"] if isinstance(piece, ast.FormattedValue) else self.texts(piece) for piece in value.values]
            return ["".join(some) for some in itertools.product(*pieces)]
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
            return [a + b for a in self.texts(value.left) for b in self.texts(value.right)]
        if isinstance(value, ast.Name):
            assigned = [one for node in (self._function, self._tree) if node for one in _assigned(node, value.id)]
            return [text for one in assigned for text in self.texts(one)] or ["{}"]
        function = _functions(self._tree).get(_called(value)) if isinstance(value, ast.Call) else None
        if function is not None:
            returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value]
            return [text for one in returned for text in Scope(self._tree, function).texts(one)]
        return ["{}"]


def _assigned(node: ast.AST, name: str) -> Iterator[ast.expr]:
    """What is assigned to a name inside of a node."""
    for one in ast.walk(node) if isinstance(node, ast.FunctionDef) else ast.iter_child_nodes(node):
        if isinstance(one, ast.Assign):
            for target in one.targets:
                pairs = [(target, one.value)]
                if isinstance(target, ast.Tuple) and isinstance(one.value, ast.Tuple):
                    pairs = list(zip(target.elts, one.value.elts, strict=False))
                for left, right in pairs:
                    if isinstance(left, ast.Name) and left.id == name:
                        yield right
