"""Values as a generator writes them: into Arrow arrays, and into what a mount must show.

A row is a dict from column name to value. Blob leaves are None, bytes or `External`; other values are plain
Python values whose JSON form is themselves, or a `Shown`, which carries both forms.
"""
import hashlib
from typing import Any, NamedTuple, Optional

import pyarrow as pa
from lance import Blob, blob_array

from names import Path, escaped_keys, file_name, top

V2_NAME = 'lance.blob.v2'
V1_KEY, V1_META = b'lance-encoding:blob', {'lance-encoding:blob': 'true'}
KINDS = ['inline', 'packed', 'dedicated', 'external', 'managed', 'managed-with-base']
ANY = {'any': True}


class Shown(NamedTuple):
    """A non-blob value whose Arrow input differs from its JSON in row.json."""
    value: Any
    json: Any


class External(NamedTuple):
    """A reference to bytes that the table does not own."""
    uri: str
    content: Optional[bytes]
    """What a read returns; None where the target is missing."""
    position: Optional[int] = None
    size: Optional[int] = None
    outside: bool = False
    """In another store than the table and under none of its bases, so that policy decides."""


class Broken(NamedTuple):
    """A stored value that a mount must refuse with `errno`; `value` is what was written."""
    value: Any
    errno: str = 'EIO'


def blob_v1(name: str, **kw) -> pa.Field:
    return pa.field(name, pa.large_binary(), metadata=V1_META, **kw)


def is_v2(field: pa.Field) -> bool:
    return isinstance(field.type, pa.BaseExtensionType) and field.type.extension_name == V2_NAME


def is_blob(field: pa.Field) -> bool:
    return is_v2(field) or (field.metadata or {}).get(V1_KEY) == b'true'


def is_list(type_: pa.DataType) -> bool:
    return pa.types.is_list(type_) or pa.types.is_large_list(type_)


def has_blob(field: pa.Field) -> bool:
    if is_blob(field):
        return True
    if is_list(field.type):
        return has_blob(field.type.value_field)
    return pa.types.is_struct(field.type) and any(has_blob(child) for child in field.type)


# -- Arrow input ---------------------------------------------------------------------------------------------

def table(fields: list, rows: list, metadata=None) -> pa.Table:
    """Build the Arrow table of `rows`; a column that a row lacks is null."""
    arrays = [_array(field, [row.get(field.name) for row in rows]) for field in fields]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=metadata))


def _array(field: pa.Field, values: list) -> pa.Array:
    if is_v2(field):
        return blob_array([_blob_input(v) for v in values])
    if is_blob(field):
        return pa.array(values, field.type)
    if not has_blob(field):
        return _plain_array(field.type, [v.value if isinstance(v, Shown) else v for v in values])
    null = pa.array([v is None for v in values])
    if pa.types.is_struct(field.type):
        children = [_array(child, [None if v is None else v.get(child.name) for v in values]) for child in field.type]
        return pa.StructArray.from_arrays(children, fields=list(field.type), mask=null)
    offsets, flat = [0], []
    for value in values:
        flat += value or []
        offsets.append(len(flat))
    large = pa.types.is_large_list(field.type)
    kind = pa.LargeListArray if large else pa.ListArray
    return kind.from_arrays(pa.array(offsets, pa.int64() if large else pa.int32()), _array(field.type.value_field, flat),
                            type=field.type, mask=null)


def _plain_array(type_: pa.DataType, values: list) -> pa.Array:
    if pa.types.is_dictionary(type_):
        return pa.array(values, type_.value_type).dictionary_encode().cast(type_)
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, pa.array(values, type_.storage_type))
    return pa.array(values, type_)


def _blob_input(value):
    if isinstance(value, Broken):
        return _blob_input(value.value)
    if isinstance(value, External):
        return Blob.from_uri(value.uri, value.position, value.size)
    return value


# -- what a mount shows --------------------------------------------------------------------------------------

def shown_row(schema: pa.Schema, row: dict, stored: dict, fallback_kind=None) -> dict:
    """Return the manifest's ROW; `stored` holds the descriptors of the blob columns, where they could be read."""
    files = {}
    escaped = escaped_keys([leaf for f in schema for leaf in _leaves(f, top(f.name))])
    to = Shower(files, escaped, fallback_kind)
    return {'files': files, 'json': {f.name: _shown(f, row.get(f.name), stored.get(f.name), top(f.name), to) for f in schema}}


class Shower(NamedTuple):
    """Where the files of a row go, and what their names and kinds depend on."""
    files: dict
    escaped: set
    fallback_kind: Optional[str]


def _leaves(field: pa.Field, path: Path):
    if is_blob(field):
        yield path
    elif is_list(field.type):
        yield from _leaves(field.type.value_field, path.element(0))
    elif pa.types.is_struct(field.type):
        for child in field.type:
            yield from _leaves(child, path.child(child.name))


def _shown(field, value, stored, path: Path, to: Shower):
    if not has_blob(field):
        return value.json if isinstance(value, Shown) else value
    if value is None:
        return None
    if is_blob(field):
        name = file_name(path.dotless if path.key in to.escaped else path.plain)
        assert name not in to.files, f'two fields named {name}'
        to.files[name] = cell(value, _kind(stored, to.fallback_kind))
        return name
    if is_list(field.type):
        element = field.type.value_field
        stored = stored or [None] * len(value)
        assert len(stored) == len(value), (path, stored, value)
        return [_shown(element, v, s, path.element(i), to) for i, (v, s) in enumerate(zip(value, stored))]
    return {child.name: _shown(child, value.get(child.name), (stored or {}).get(child.name), path.child(child.name), to)
            for child in field.type}


def _kind(stored, fallback_kind):
    if stored is None:
        return fallback_kind
    return KINDS[stored['kind']] if 'kind' in stored else 'legacy'


def cell(value, kind) -> dict:
    if isinstance(value, Broken):
        return {'error': value.errno}
    outside = isinstance(value, External) and value.outside
    content = value.content if isinstance(value, External) else value
    if content is None:
        return {'error': 'EACCES' if outside else 'EIO'}
    assert kind is not None, 'a non-null blob without a stored descriptor'
    shown = {'size': len(content), 'sha256': hashlib.sha256(content).hexdigest(), 'kind': kind}
    return shown | ({'policy': 'outside'} if outside else {})
