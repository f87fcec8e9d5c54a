"""The tables by name. A builder writes one table, or a few that need each other, and returns their records."""
from typing import Callable, NamedTuple


class Builder(NamedTuple):
    names: tuple
    build: Callable
    default: bool
    local_only: bool


BUILDERS = []


def builds(*names: str, default=True, local_only=False):
    """Register a function (output, settings) -> {name: Record} for `names`."""
    def register(build):
        BUILDERS.append(Builder(names, build, default, local_only))
        return build
    return register


def chosen(only, remote: bool):
    """Return the builders of the tables in `only`, or the default set."""
    if only is None:
        return [b for b in BUILDERS if b.default and not (remote and b.local_only)]
    unknown = set(only) - {name for b in BUILDERS for name in b.names}
    if unknown:
        raise SystemExit(f'no such table: {", ".join(sorted(unknown))}; --list shows them')
    return [b for b in BUILDERS if set(only) & set(b.names)]
