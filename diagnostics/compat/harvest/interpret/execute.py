"""Follows the body of a function that adds options to a parser, statement by statement."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from .operations import bind
from .source import imported_names
from .values import FunctionValue, Instance, Scope, Unknown, known

if TYPE_CHECKING:
    from .evaluator import Evaluator


class _Returned(Exception):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


def run_function(
    interpreter: Evaluator, function: FunctionValue, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """What the function returns, or Unknown; parser objects among the arguments record what is added to them."""
    if isinstance(function.node, ast.AsyncFunctionDef):
        return Unknown(function.node.name)
    scope = Scope(function.module, {}, function.owner, function.bound)
    _bind_parameters(interpreter, function, args, kwargs, scope)
    try:
        _body(interpreter, function.node.body, scope)
    except _Returned as returned:
        return returned.value
    return None


def _bind_parameters(
    interpreter: Evaluator, function: FunctionValue, args: list[Any], kwargs: dict[str, Any], scope: Scope
) -> None:
    parameters = function.node.args
    names = [item.arg for item in (*parameters.posonlyargs, *parameters.args)]
    decorators = {ast.unparse(item) for item in function.node.decorator_list}
    values = list(args)
    if function.owner is not None and "staticmethod" not in decorators and names:
        bound = function.bound or function.owner
        scope.names[names.pop(0)] = bound if "classmethod" in decorators else Instance(bound, {})
    defaults = dict(zip(reversed(names), reversed(parameters.defaults), strict=False))
    for name in names:
        if values:
            scope.names[name] = values.pop(0)
        elif name in kwargs:
            scope.names[name] = kwargs[name]
        elif name in defaults:
            scope.names[name] = interpreter.expression(defaults[name], Scope(function.module))
        else:
            scope.names[name] = Unknown(name)
    for item, default in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True):
        fallback = (
            Unknown(item.arg) if default is None else interpreter.expression(default, Scope(function.module))
        )
        scope.names[item.arg] = kwargs.get(item.arg, fallback)
    if parameters.vararg:
        scope.names[parameters.vararg.arg] = tuple(values)
    if parameters.kwarg:
        scope.names[parameters.kwarg.arg] = {k: v for k, v in kwargs.items() if k not in scope.names}


def _body(interpreter: Evaluator, body: list[ast.stmt], scope: Scope) -> None:
    for node in body:
        _statement(interpreter, node, scope)


def _statement(interpreter: Evaluator, node: ast.stmt, scope: Scope) -> None:
    match node:
        case ast.Expr(value=value):
            interpreter.expression(value, scope)
        case ast.Return(value=value):
            raise _Returned(None if value is None else interpreter.expression(value, scope))
        case ast.Assign(targets=targets, value=value):
            found = interpreter.expression(value, scope)
            for target in targets:
                _assign(interpreter, target, found, scope)
        case ast.AnnAssign(target=target, value=value) if value is not None:
            _assign(interpreter, target, interpreter.expression(value, scope), scope)
        case ast.AugAssign(target=ast.Name() | ast.Subscript() as target, op=op, value=value):
            joined = interpreter.expression(ast.copy_location(ast.BinOp(target, op, value), node), scope)
            _assign(interpreter, target, joined, scope)
        case ast.Delete(targets=targets):
            for target in targets:
                _delete(interpreter, target, scope)
        case ast.If(test=test, body=body, orelse=orelse):
            verdict = interpreter.expression(test, scope)
            if known(verdict):
                _body(interpreter, body if verdict else orelse, scope)
            elif any(isinstance(inner, ast.Return) for inner in ast.walk(node)):
                raise _Returned(Unknown(ast.unparse(test)))
        case ast.For(target=target, iter=iterable, body=body):
            _loop(interpreter, target, interpreter.expression(iterable, scope), body, scope)
        case ast.With(body=body) | ast.Try(body=body):
            _body(interpreter, body, scope)
        case ast.FunctionDef():
            scope.names[node.name] = FunctionValue(scope.module, node)
        case ast.Import() | ast.ImportFrom():
            for name, target in imported_names(scope.module, node):
                scope.names[name] = interpreter.imported(target)
        case ast.Raise():
            raise _Returned(Unknown("raises"))
        case _:
            pass


def _loop(interpreter: Evaluator, target: ast.expr, items: Any, body: list[ast.stmt], scope: Scope) -> None:
    if not known(items):
        return
    for item in interpreter.iterate(items):
        bind(target, item, scope)
        _body(interpreter, body, scope)


def _assign(interpreter: Evaluator, target: ast.expr, value: Any, scope: Scope) -> None:
    if isinstance(target, ast.Subscript):
        container = interpreter.expression(target.value, scope)
        key = interpreter.expression(target.slice, scope)
        if isinstance(container, dict) and known(key):
            container[key] = value
    else:
        bind(target, value, scope)


def _delete(interpreter: Evaluator, target: ast.expr, scope: Scope) -> None:
    if isinstance(target, ast.Subscript):
        container = interpreter.expression(target.value, scope)
        if isinstance(container, dict):
            container.pop(interpreter.expression(target.slice, scope), None)
