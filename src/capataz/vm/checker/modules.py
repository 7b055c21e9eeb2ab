"""The source closure as the checker sees it: modules, scopes (functions, lambdas, class bodies), and who holds whom."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from capataz.vm.closure import base_of_import
from capataz.vm.importer import ENTRY, main_file

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Body = ast.Module | ast.ClassDef | FunctionNode
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True, slots=True)
class Value:
    """What a name was given. ``how``: assigned as a whole, a part of it (unpacked), or item by item (a loop)."""

    expr: ast.expr
    how: str                                   # "whole", "part", "item", "entered"
    annotation: ast.expr | None = None


@dataclass(eq=False, slots=True)
class Scope:
    """A module's top level, a function, a lambda or a class body. ``nodes``: all that runs in it, nested scopes left out."""

    module: Module
    node: Body
    name: str                                  # dotted, inside the module; "" for its top level
    parent: Scope | None                       # where its free names are looked up
    owner: ast.ClassDef | None = None          # of a method
    nodes: list[ast.AST] = field(default_factory=list[ast.AST])
    params: dict[str, ast.arg] = field(default_factory=dict[str, ast.arg])
    values: dict[str, list[Value]] = field(default_factory=dict[str, list[Value]])
    functions: dict[str, Scope] = field(default_factory=dict[str, "Scope"])
    classes: dict[str, ast.ClassDef] = field(default_factory=dict[str, ast.ClassDef])
    imports: dict[str, str] = field(default_factory=dict[str, str])
    outer_names: set[str] = field(default_factory=set[str])      # declared global or nonlocal

    @property
    def is_async(self) -> bool:
        return isinstance(self.node, ast.AsyncFunctionDef)

    @property
    def is_function(self) -> bool:
        return isinstance(self.node, FunctionNode)

    @property
    def dotted(self) -> str:
        return f"{self.module.name}.{self.name}" if self.name else self.module.name

    @property
    def title(self) -> str:
        return self.name.rpartition(".")[2] or self.module.name

    def binds(self, name: str) -> bool:
        """Whether a name is this scope's own."""
        if name in self.outer_names:
            return False
        return any(name in table for table in (self.params, self.values, self.functions, self.classes, self.imports))

    def chain(self) -> Iterator[Scope]:
        """This scope and those around it."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent


@dataclass(eq=False, slots=True)
class Module:
    """``shown``: its path as findings name it."""

    name: str
    path: str
    shown: str
    tree: ast.Module
    package: bool
    top: Scope = field(init=False)
    scopes: list[Scope] = field(default_factory=list[Scope])
    stars: list[str] = field(default_factory=list[str])


class Project:
    """All modules of a closure, with the parent of each node and the scope that runs it."""

    def __init__(
        self, files: Mapping[str, str], *, trees: Mapping[str, ast.Module] | None = None, shown: Mapping[str, str] | None = None
    ) -> None:
        self.modules: dict[str, Module] = {}
        self.parents: dict[ast.AST, ast.AST] = {}
        self.scope_of: dict[ast.AST, Scope] = {}       # of nodes that begin a scope
        self.home: dict[ast.AST, Scope] = {}           # of every node: the scope that runs it
        self.module_of: dict[ast.ClassDef, Scope] = {}
        for path, text in files.items():
            if path.endswith(".py"):
                tree = (trees or {}).get(path) or ast.parse(text)
                self._add(path, tree, files, (shown or {}).get(path, path))
        self.named: dict[str, Scope] = {scope.dotted: scope for scope in self.scopes() if scope.name}

    def _add(self, path: str, tree: ast.Module, files: Mapping[str, str], shown: str) -> None:
        package = path.endswith("/__init__.py") or path == "__init__.py"
        name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        main = main_file(files)
        if main is not None and main[1] == path:
            name = main[0]
        module = Module(name, path, shown, tree, package)
        self.modules[name] = module
        module.top = _Builder(self, module).build()

    def scopes(self) -> Iterator[Scope]:
        for module in self.modules.values():
            yield from module.scopes

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes that hold a node, innermost first, inside its scope."""
        while (node := self.parents.get(node)) is not None:  # type: ignore[assignment]
            if node in self.scope_of:
                return
            yield node


def entry_of(files: Mapping[str, str]) -> tuple[str, str]:
    """Module and name of the program that a closure is for."""
    module, _, name = files[ENTRY].rpartition(":")
    return module, name


class _Builder:
    """One walk over a module."""

    def __init__(self, project: Project, module: Module) -> None:
        self._project = project
        self._module = module

    def build(self) -> Scope:
        top = self._open(self._module.tree, "", None)
        self._visit_all(self._module.tree.body, self._module.tree, top)
        return top

    def _open(self, node: Body, name: str, parent: Scope | None, owner: ast.ClassDef | None = None) -> Scope:
        scope = Scope(self._module, node, name, parent, owner)
        self._module.scopes.append(scope)
        self._project.scope_of[node] = scope
        return scope

    def _visit_all(self, nodes: list[ast.stmt] | list[ast.expr], parent: ast.AST, scope: Scope) -> None:
        for node in nodes:
            self._visit(node, parent, scope)

    def _visit(self, node: ast.AST, parent: ast.AST, scope: Scope) -> None:
        self._project.parents[node] = parent
        self._project.home[node] = scope
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._function(node, scope)
        elif isinstance(node, ast.Lambda):
            inner = self._open(node, _join(scope, f"<lambda:{node.lineno}:{node.col_offset}>"), _outer(scope))
            scope.nodes.append(node)
            self._arguments(node.args, node, scope, inner)
            self._visit(node.body, node, inner)
        elif isinstance(node, ast.ClassDef):
            self._class(node, scope)
        else:
            scope.nodes.append(node)
            _bind(node, scope, self._module)
            for child in ast.iter_child_nodes(node):
                if not _is_annotation(node, child):
                    self._visit(child, node, scope)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        owner = scope.node if isinstance(scope.node, ast.ClassDef) else None
        inner = self._open(node, _join(scope, node.name), _outer(scope), owner)
        scope.functions[node.name] = inner
        self._visit_all(node.decorator_list, node, scope)
        self._arguments(node.args, node, scope, inner)
        self._visit_all(node.body, node, inner)

    def _arguments(self, arguments: ast.arguments, node: ast.AST, scope: Scope, inner: Scope) -> None:
        for arg in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
            if arg is not None:
                inner.params[arg.arg] = arg
        self._visit_all([d for d in (*arguments.defaults, *arguments.kw_defaults) if d is not None], node, scope)

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        scope.classes[node.name] = node
        self._project.module_of[node] = _outer(scope)
        self._visit_all([*node.decorator_list, *node.bases, *(k.value for k in node.keywords)], node, scope)
        inner = self._open(node, _join(scope, node.name), _outer(scope))
        self._visit_all(node.body, node, inner)


def _join(scope: Scope, name: str) -> str:
    return f"{scope.name}.{name}" if scope.name else name


def _outer(scope: Scope) -> Scope:
    """Names of a class body are not seen by what is defined in it."""
    return scope.parent or scope if isinstance(scope.node, ast.ClassDef) else scope


def _is_annotation(node: ast.AST, child: ast.AST) -> bool:
    return isinstance(node, ast.AnnAssign) and child is node.annotation


# ---- names that a node binds ---------------------------------------------------------------------


def _bind(node: ast.AST, scope: Scope, module: Module) -> None:
    match node:
        case ast.Assign():
            for target in node.targets:
                _target(target, node.value, "whole", scope)
        case ast.AnnAssign(value=None):
            _give(node.target, Value(ast.Constant(None), "part", node.annotation), scope)
        case ast.AnnAssign(value=value) if value is not None:
            _give(node.target, Value(value, "whole", node.annotation), scope)
        case ast.AugAssign():
            _target(node.target, node.value, "part", scope)
        case ast.NamedExpr():
            _target(node.target, node.value, "whole", scope)
        case ast.For() | ast.AsyncFor() | ast.comprehension():
            _target(node.target, node.iter, "item", scope)
        case ast.withitem() if node.optional_vars is not None:
            _target(node.optional_vars, node.context_expr, "entered", scope)
        case ast.ExceptHandler() if node.name:
            scope.values.setdefault(node.name, []).append(Value(ast.Constant(None), "part"))
        case ast.MatchAs() | ast.MatchStar() if node.name:
            scope.values.setdefault(node.name, []).append(Value(ast.Constant(None), "part"))
        case ast.Global() | ast.Nonlocal():
            scope.outer_names.update(node.names)
        case ast.Import():
            for alias in node.names:
                scope.imports[alias.asname or alias.name.partition(".")[0]] = alias.name if alias.asname else alias.name.partition(".")[0]
        case ast.ImportFrom():
            _import_from(node, scope, module)
        case _:
            pass


def _import_from(node: ast.ImportFrom, scope: Scope, module: Module) -> None:
    base = base_of_import(node, module.name, module.package)
    if base is None:
        return
    for alias in node.names:
        if alias.name == "*":
            module.stars.append(base)
        else:
            scope.imports[alias.asname or alias.name] = f"{base}.{alias.name}"


def _target(target: ast.expr, value: ast.expr, how: str, scope: Scope) -> None:
    if isinstance(target, (ast.Tuple, ast.List)):
        same = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts) and how == "whole"
        for index, part in enumerate(target.elts):
            given = value.elts[index] if same and isinstance(value, (ast.Tuple, ast.List)) else value
            _target(part, given, "whole" if same else "part", scope)
    elif isinstance(target, ast.Starred):
        _target(target.value, value, "part", scope)
    else:
        _give(target, Value(value, how), scope)


def _give(target: ast.expr, value: Value, scope: Scope) -> None:
    if isinstance(target, ast.Name):
        scope.values.setdefault(target.id, []).append(value)
