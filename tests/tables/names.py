"""File names of a mount, written from the naming rules alone and not from the Rust code.

A field name is shown as it is, except that `/`, NUL, control characters, `%`, `[`, `]` and a leading `.`
become `%XX` of their UTF-8 bytes. Three cases need more than that:

1. The empty name is a lone `%`, which no other escape produces.
2. Nested names can hold a `.`, so `a` with the children `b.c` and `b` with the child `c` both read `a.b.c`. The
   one that is spelled without an escape keeps that name; of a name with dots in it, all are escaped where it is taken.
3. A file name over 255 bytes is cut and marked by `~` and 8 hex digits of the SHA-256 of the uncut stem.
"""
import hashlib
import re
import unicodedata
from typing import NamedTuple

SUFFIX = '.bin'
NAME_MAX = 255
_EMPTY = '%'
_HASH_DIGITS = 8


def _percent(char: str) -> str:
    return ''.join(f'%{byte:02X}' for byte in char.encode())


def _is_special(char: str) -> bool:
    return char in '/%[]' or unicodedata.category(char) == 'Cc'


def escape(name: str) -> str:
    """Return a tag's or branch's name as one path component."""
    return _cut(escape_field(name), NAME_MAX)


def escape_field(name: str) -> str:
    """Return a field's name as one component of a field path, without cutting it."""
    if name == '':
        return _EMPTY
    if name in ('.', '..'):
        return name.replace('.', '%2E')
    escaped = ''.join(_percent(c) if _is_special(c) else c for c in name)
    return '%2E' + escaped[1:] if escaped.startswith('.') else escaped


def escape_dots(name: str) -> str:
    """Return a field's name with its dots escaped too."""
    return escape_field(name).replace('.', '%2E')


class Path(NamedTuple):
    """A field's path so far: as it is shown, with all dots escaped, and without list positions."""
    plain: str
    dotless: str
    key: tuple

    def child(self, name: str) -> 'Path':
        return Path(f'{self.plain}.{escape_field(name)}', f'{self.dotless}.{escape_dots(name)}', (*self.key, name))

    def element(self, index: int) -> 'Path':
        return Path(f'{self.plain}[{index}]', f'{self.dotless}[{index}]', (*self.key, None))


def top(name: str) -> Path:
    return Path(escape_field(name), escape_dots(name), (name,))


def escaped_keys(leaves: list) -> set:
    """Return the keys of the leaves whose dots must be escaped; `leaves` are Paths in schema order."""
    taken, escaped = {leaf.plain for leaf in leaves if leaf.plain == leaf.dotless}, set()
    for leaf in leaves:
        if leaf.plain != leaf.dotless:
            if leaf.plain in taken:
                escaped.add(leaf.key)
            taken.add(leaf.plain)
    return escaped


def file_name(stem: str) -> str:
    """Return the file of a field path such as `scenes[2].clip`, whose components are escaped already."""
    return _cut(stem, NAME_MAX - len(SUFFIX)) + SUFFIX


def _cut(escaped: str, limit: int) -> str:
    if len(escaped.encode()) <= limit:
        return escaped
    mark = '~' + hashlib.sha256(escaped.encode()).hexdigest()[:_HASH_DIGITS]
    kept, room = '', limit - len(mark)
    for piece in _pieces(escaped):
        room -= len(piece.encode())
        if room < 0:
            break
        kept += piece
    return kept + mark


def _pieces(escaped: str):
    """Yield the characters of `escaped`, a `%XX` as one: a cut never falls inside either."""
    return re.findall('%[0-9A-F]{2}|.', escaped, re.DOTALL)
