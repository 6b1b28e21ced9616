"""The command line of `python -m recipes`, made of the functions in `commands`.

A function is a command. Its positional-only parameters are arguments, the others are
options; annotations give their types, and the docstring gives their help. A parameter
whose type is a dataclass has its fields as options.
"""

import argparse
import dataclasses
import inspect
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from recipes import commands
from recipes.tasks import RunError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    given = parse(arguments)
    try:
        run_command(given)
    except KeyboardInterrupt:
        print("\ninterrupted: the same command continues.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader has closed the pipe; keep Python from flushing the output again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (RunError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m recipes",
        description="Train the paper's models with the paper's losses, and evaluate "
        "them.",
        epilog="KERAS_BACKEND chooses the backend: jax, tensorflow or torch.",
    )
    subparsers = found.add_subparsers(metavar="COMMAND", required=True)
    for command in commands.COMMANDS:
        text, _ = _documented(command)
        added = subparsers.add_parser(
            command.__name__.removesuffix("_"),
            help=text.split("\n")[0].rstrip("."),
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.set_defaults(command=command)
        for source, parameter, kind in _parameters(command):
            _add(added, source, parameter, kind)
    return found


def parse(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Returns the values of all options, and the function that is the command."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(_parser().parse_args(arguments)).items()
    }


def run_command(given: Mapping[str, Any]) -> None:
    """Calls the command with its options."""
    command = given["command"]
    hints = typing.get_type_hints(command, include_extras=True)
    positional, options = [], {}
    for name, parameter in inspect.signature(command).parameters.items():
        value = given.get(name)
        if dataclasses.is_dataclass(hints[name]):
            value = made(hints[name], given)
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(value)
        else:
            options[name] = value
    command(*positional, **options)


def made(kind: Any, given: Mapping[str, Any]) -> Any:
    """Returns an object of a dataclass whose fields are options."""
    names = [field.name for field in dataclasses.fields(kind)]
    return kind(**{name: given[name] for name in names if name in given})


def _parameters(source: Any) -> Iterator[tuple[Any, inspect.Parameter, Any]]:
    """Yields the parameters of a function, and its types; dataclasses give theirs."""
    hints = typing.get_type_hints(source, include_extras=True)
    for parameter in inspect.signature(source).parameters.values():
        kind = hints[parameter.name]
        if not dataclasses.is_dataclass(kind):
            yield source, parameter, kind
            continue
        for one in _parameters(kind):
            # A search has seeds of its own.
            if one[1].name != "seed" or "seeds" not in hints:
                yield one


def _documented(source: Any) -> tuple[str, dict[str, str]]:
    """Returns the text of a docstring, and what it says of each argument."""
    text, _, arguments = inspect.cleandoc(source.__doc__).partition("\nArgs:\n")
    parts = re.split(r"^    (\w+): ", arguments.partition("\n\n")[0], flags=re.M)[1:]
    words = (" ".join(part.split()).rstrip(".") for part in parts[1::2])
    return text.strip(), dict(zip(parts[::2], words, strict=True))


def _add(
    target: argparse.ArgumentParser,
    source: Any,
    parameter: inspect.Parameter,
    kind: Any,
) -> None:
    """Adds an argument or an option."""
    name, default = parameter.name, parameter.default
    kinds = [one for one in typing.get_args(kind) if one is not types.NoneType]
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        kind = kinds[0]
    options: dict[str, Any] = {"help": _documented(source)[1][name].replace("%", "%%")}
    several = typing.get_origin(kind) is tuple
    if parameter.kind is parameter.POSITIONAL_ONLY:
        if several:
            options["nargs"] = "+" if default is parameter.empty else "*"
        target.add_argument(name, **options)
        return
    if kind is bool:
        options["action"] = "store_true"
    elif several:
        options |= {"action": "append", "default": []}
        if typing.get_origin(kinds[0]) is typing.Literal:
            options["choices"] = typing.get_args(kinds[0])
    else:
        if typing.get_origin(kind) is typing.Literal:
            options["choices"] = typing.get_args(kind)
        elif kind is not str:
            options |= {"type": _integer(kind) if kind is not float else float}
            options["metavar"] = "N"
        options |= (
            {"required": True} if default is parameter.empty else {"default": default}
        )
        if default not in (None, parameter.empty):
            options["help"] += f" (default: {default})"
    flags = ["-o"] if name == "output" else []
    target.add_argument(*flags, f"--{name.replace('_', '-')}", **options)


def _integer(kind: Any) -> Callable[[str], int]:
    """Returns the reader of an integer with a least value, `Annotated[int, least]`."""
    (least,) = kind.__metadata__

    def read(text: str) -> int:
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}")
        return value

    return read
