"""Column names that are awkward as file names. A top-level name cannot hold a dot, a nested one can."""
import pyarrow as pa
from lance import blob_field

from payloads import payload
from record import Record
from registry import builds
from tables_values import ID, written

TOP_LEVEL = ['a/b', 'A', 'a', 'x%y', '%41', '%', '[0]', 'new\nline', 'tab\t', '\x01', '\x7f', '\x85', 'ünïcødé 日本 🙂', 'e\u0301', '\u00e9',
             ' ', '-rf', '*', '~', 'a\\b', 'con', 'row', 'latest', '"quoted"', "it's"]
LONG = ['x' * 251, 'x' * 252, 'x' * 300, 'x' * 299 + 'y', '日' * 83, '日' * 84, '日' * 200, 'a' + '日' * 200, '/' * 100, 'ab' + '/' * 100, '🙂' * 63]
NESTED = ['.', '..', '.hidden', '', 'a/b', 'x.y', 'x', '[0]', 'b.c', '日' * 200]


def _values(label, names):
    return [{name: payload(f'{label}/{i}/{name}', 5 + i) for i, name in enumerate(names)}, {name: None for name in names},
            {name: b'' if i % 2 else None for i, name in enumerate(names)}]


def _rows(label, names):
    return [{'id': i} | values for i, values in enumerate(_values(label, names))]


@builds('names')
def top_level(output, _):
    return written(output, 'names', 'slashes, percent, brackets, control characters, case, composed and decomposed, shell and Windows names',
                   [ID] + [blob_field(name) for name in TOP_LEVEL], _rows('names', TOP_LEVEL))


@builds('names_long')
def long(output, _):
    return written(output, 'names_long', 'names at and over 255 bytes, ASCII, multi-byte and made of escapes',
                   [ID] + [blob_field(name) for name in LONG], _rows('names_long', LONG))


@builds('names_nested')
def nested(output, _):
    """`s` holds `b.c` and, in the struct `b`, `c`: two fields whose plain paths are equal."""
    names = NESTED
    struct = pa.struct([blob_field(name) for name in names] + [pa.field('b', pa.struct([blob_field('c')]))])
    rows = [{'id': i, 's': values | {'b': {'c': b'in b %d' % i}}, 'l': [values | {'b': None}]} for i, values in enumerate(_values('names_nested', names))]
    rows.append({'id': len(rows)})
    return written(output, 'names_nested', 'names inside a struct: dots, dot-dot, empty, a path that reads like another field',
                   [ID, pa.field('s', struct), pa.field('l', pa.list_(pa.field('item', struct)))], rows)


@builds('names_plain')
def plain(output, _):
    """Awkward names of columns that only row.json shows."""
    names = ['a/b', 'x\ny', '"', '日本', 'row', '%']
    rows = [{'id': i, 'blob': b'b'} | {name: f'{name}-{i}' for name in names} for i in range(2)]
    return written(output, 'names_plain', 'awkward names of columns without blobs', [ID, *(pa.field(n, pa.string()) for n in names), blob_field('blob')], rows)


@builds('names_unprojectable')
def unprojectable(output, _):
    """Names that a projection by name does not find; the columns can still be read by field id."""
    record = Record(output.uri('names_unprojectable'), 'columns named "" and with a backtick')
    rows = [{'id': 0, '': b'empty name', '`tick': b'backtick', 'plain': b'plain'}, {'id': 1}]
    fields = [ID, blob_field(''), blob_field('`tick'), blob_field('plain')]
    ds = output.create('names_unprojectable', fields, rows)
    record.version(ds, rows, kind='inline')
    return {'names_unprojectable': record}
