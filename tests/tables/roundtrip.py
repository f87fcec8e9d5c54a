#!/usr/bin/env python3
"""Which tables can take a copy of their own rows, and whether the copies are the same rows.

    roundtrip.py choose DIR         # prints [name, …] of the tables of DIR/manifest.json that have Blob v2
    roundtrip.py compare < JOBS     # [{"uri", "options", "pairs": [[old, new], …]}, …] of rows of the newest version
"""
import json
import os
import re
import sys

import lance
import pyarrow as pa

from cells import has_blob, is_blob, is_list, is_v2

MANAGED = (4, 5)
DESCRIPTOR = {'kind', 'position', 'size', 'blob_id', 'blob_uri'}


def choose(folder: str):
    with open(os.path.join(folder, 'manifest.json')) as file:
        tables = json.load(file)['tables']
    for name, entry in tables.items():
        newest = entry['versions'][str(entry['latest'])]
        if 'error' in newest or 'count' in newest or not newest['rows']:
            continue
        ds = lance.dataset(entry['uri'])
        leaves = [leaf for field in ds.schema for leaf in _blobs(field)]
        if leaves and all(is_v2(leaf) for leaf in leaves):
            yield name


def _blobs(field: pa.Field):
    if is_blob(field):
        yield field
    elif is_list(field.type):
        yield from _blobs(field.type.value_field)
    elif pa.types.is_struct(field.type):
        for child in field.type:
            yield from _blobs(child)


def compare(job: dict):
    ds = lance.dataset(job['uri'], storage_options=job['options'])
    pairs = job['pairs']
    for at, field in enumerate(ds.schema):
        for old, new in pairs:
            a, b = _cell(ds, at, old, 'all_binary'), _cell(ds, at, new, 'all_binary')
            if not a.equals(b) and repr(a.as_py()) != repr(b.as_py()):  # NaN equals nothing, but reads the same
                yield field.name[:20], old, new, repr(a)[:80], repr(b)[:80]
            if has_blob(field):
                kinds = set(_wrong_kinds(_cell(ds, at, new, 'blobs_descriptions').as_py()))
                if kinds:
                    yield field.name[:20], new, 'kinds', kinds
        if is_blob(field) and re.fullmatch(r'\w+', field.name):
            yield from _handles(ds, at, pairs)


_columns = {}


def _cell(ds, at: int, row: int, handling: str):
    """Return a cell. A column that cannot be read with the others is read alone, else row by row."""
    key = (ds.uri, at, handling)
    if key not in _columns:
        _columns[key] = _column(ds, at, handling)
    column = _columns[key]
    if column is None:
        return ds.to_table(columns=[ds.schema.field(at).name], limit=1, offset=row, blob_handling=handling).column(0)[0]
    return column[row]


def _column(ds, at, handling):
    for columns, index in ((None, at), ([ds.schema.field(at).name], 0)):
        try:
            column = ds.to_table(columns=columns, blob_handling=handling).column(index)
            if len(column) == ds.count_rows():
                return column
        except Exception:  # noqa: S110, BLE001: one broken value fails a whole scan
            pass
    return None


def _wrong_kinds(value):
    if isinstance(value, dict) and set(value) == DESCRIPTOR:
        if value['size'] and value['kind'] not in MANAGED or not value['size'] and value['kind'] != 0:
            yield value['kind']
        return
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _wrong_kinds(child)


def _handles(ds, at, pairs):
    """The bytes of the new rows once more, by the API that people use."""
    name, rows = ds.schema.field(at).name, [new for _, new in pairs]
    wanted = [v for v in (_cell(ds, at, row, 'all_binary').as_py() for row in rows) if v is not None]
    found = [blob.readall() for blob in ds.take_blobs(name, indices=rows) if blob is not None]
    if found != wanted:
        yield name, 'take_blobs', len(found), len(wanted)


def main() -> int:
    if sys.argv[1] == 'choose':
        print(json.dumps(list(choose(sys.argv[2]))))
        return 0
    count = 0
    for job in json.load(sys.stdin):
        for difference in compare(job):
            print('differs:', job['uri'], *difference)
            count += 1
    return 1 if count else 0


if __name__ == '__main__':
    sys.exit(main())
