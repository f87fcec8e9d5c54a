#!/usr/bin/env python3
"""Every index that pylance builds, on every kind of column that takes it, and whether each finds what is there.

    indices.py make TABLE [stable]  # a table of two fragments with all of them; prints the rows to be replaced, as row.json
    indices.py compare TABLE [optimize]   # asks each index and compares with a scan; prints what disagrees

A value is made of a number, so that each row can be asked for by its own, and by the one that it had before.
"""
import json
import os
import sys

os.environ['LANCE_LOG'] = 'error'  # Indices of so few rows are warned of.

import lance
import numpy as np
import pyarrow as pa
from lance import blob_array, blob_field
from lance.indices import IndexConfig
from lance.query import MatchQuery, MinHashQuery

ROWS, FRAGMENT, WIDTH = 96, 48, 8
# The rows that are replaced, and the numbers of their new values.
REPLACED = {3: 1003, 20: 1020}
VECTOR = pa.list_(pa.float32(), WIDTH)
POINT = pa.struct([('x', pa.float64()), ('y', pa.float64())])
TEXTS, TAGS = pa.string(), pa.list_(pa.string())
PAIRS = pa.list_(pa.struct([('n', pa.int64()), ('text', pa.string())]))


def text(n: int) -> str:
    return f'unique{n}x and some common words'


def vector(n: int) -> list:
    return [round(float(x), 3) for x in np.random.default_rng(n).normal(size=WIDTH)]


def pairs(n: int) -> list:
    return [{'n': n, 'text': text(n)}, {'n': -1, 'text': 'other'}]


# Type, value of a number, and the indices that are built on such a column.
VALUES = {
    'int': (pa.int64(), int, ['BTREE', 'BITMAP', 'ZONEMAP', 'BLOOMFILTER']),
    'text': (TEXTS, text, ['BTREE', 'BITMAP', 'ZONEMAP', 'BLOOMFILTER', 'NGRAM', 'FM', 'INVERTED', 'MINHASHLSH']),
    'tags': (TAGS, lambda n: [f'unique{n}x', 'common'], ['LABEL_LIST', 'INVERTED', 'ZONEMAP']),
    'large': (pa.large_list(pa.string()), lambda n: [f'unique{n}x', 'common'], ['LABEL_LIST', 'INVERTED']),
    'vector': (VECTOR, vector, ['IVF_FLAT', 'IVF_PQ', 'IVF_SQ', 'IVF_RQ', 'IVF_HNSW_FLAT', 'IVF_HNSW_PQ', 'IVF_HNSW_SQ']),
    'vectors': (pa.list_(VECTOR), lambda n: [vector(n), vector(n + 5000)], ['IVF_FLAT', 'IVF_PQ', 'IVF_SQ', 'IVF_RQ', 'IVF_HNSW_FLAT', 'IVF_HNSW_PQ', 'IVF_HNSW_SQ']),
    'pairs': (PAIRS, pairs, ['INVERTED']),
    'point': (POINT, lambda n: {'x': float(n), 'y': float(n)}, ['RTREE']),
    'doc': (pa.json_(), lambda n: json.dumps({'n': n}), ['JSON']),
}
# In a struct, where pylance builds them: no list of structs and no document there.
NESTED = [kind for kind in VALUES if kind not in ('pairs', 'doc')]


def columns():
    """Index, kind and path of every column; each has an index of its own."""
    for kind, (_, _, indices) in VALUES.items():
        for index in indices:
            yield index, kind, f'{kind}_{index.lower()}'
            if kind in NESTED:
                yield index, kind, f'nest.{kind}_{index.lower()}'


def field(name: str, kind: str) -> pa.Field:
    metadata = {'ARROW:extension:name': 'geoarrow.point'} if kind == 'point' else None
    return pa.field(name, VALUES[kind][0], metadata=metadata)


def of(index: str, kind: str, n: int):
    # Of lists, a zone map knows which are null.
    return None if (index, kind, n) == ('ZONEMAP', 'tags', 1020) else VALUES[kind][1](n)


def row(n: int) -> dict:
    shown = {'nest': {}}
    for index, kind, path in columns():
        *above, name = path.split('.')
        (shown['nest'] if above else shown)[name] = of(index, kind, n)
    return shown


def make(uri: str, stable: bool):
    plain = [field(path, kind) for _, kind, path in columns() if '.' not in path]
    nested = [field(path.split('.')[1], kind) for _, kind, path in columns() if '.' in path]
    fields = [pa.field('id', pa.int64()), *plain, pa.field('nest', pa.struct(nested)), blob_field('blob')]
    schema = pa.schema(fields, metadata={'lance.blob.managed': 'true'})
    rows = [row(n) for n in range(ROWS)]
    arrays = [pa.array(range(ROWS), pa.int64())]
    arrays += [pa.array([r[f.name] for r in rows], f.type) for f in plain]
    arrays += [pa.array([r['nest'] for r in rows], pa.struct(nested)), blob_array([b'%d' % n for n in range(ROWS)])]
    ds = lance.write_dataset(pa.table(arrays, schema=schema), uri, data_storage_version='2.2',
                             max_rows_per_file=FRAGMENT, enable_stable_row_ids=stable)
    for index, kind, path in columns():
        path = path + '.text' if kind == 'pairs' else path
        if index.startswith('IVF'):
            more = {'num_sub_vectors': 2, 'num_bits': 4} if 'PQ' in index else {}
            ds.create_index(path, index, num_partitions=2, metric='cosine', **more)
        elif index == 'FM':
            ds.create_scalar_index(path, IndexConfig('fm', {}))
        elif index == 'JSON':
            if stable:  # pylance refuses it.
                continue
            ds.create_scalar_index(path, IndexConfig('json', {'target_index_type': 'btree', 'path': 'n'}))
        else:
            ds.create_scalar_index(path, index)
    unused = {(index, path) for index, kind, path in columns() if not uses_index(ds, index, kind, path, 3)}
    # Asked for in a struct, these are not used by pylance.
    nested = ('BLOOMFILTER', 'NGRAM', 'FM', 'LABEL_LIST', 'RTREE')
    assert all('.' in path and index in nested or index == 'JSON' and stable for index, path in unused), unused
    print(json.dumps({at: row(n) for at, n in REPLACED.items()}))


def query(index: str, kind: str, path: str, n: int) -> dict:
    """The arguments of a scan that finds the rows of a number."""
    value = VALUES[kind][1](n)
    if index.startswith('IVF'):
        q = np.array(vector(n), np.float32) if kind == 'vector' else np.array(value, np.float32)
        return {'nearest': {'column': path, 'q': q, 'k': 3, 'nprobes': 2, 'refine_factor': 32, 'ef': 96}}
    if index == 'INVERTED':
        return {'full_text_query': MatchQuery(f'unique{n}x', path + '.text' if kind == 'pairs' else path)}
    if index == 'MINHASHLSH':
        return {'nearest': MinHashQuery(value, path), 'limit': 1}
    if index in ('NGRAM', 'FM'):
        return {'filter': f"contains({path}, 'unique{n}x')"}
    if index == 'LABEL_LIST':
        return {'filter': f"array_has_any({path}, ['unique{n}x'])"}
    if index == 'RTREE':
        low, high = n - 0.5, n + 0.5
        ring = ', '.join(f'{x} {y}' for x, y in [(low, low), (high, low), (high, high), (low, high), (low, low)])
        return {'filter': f"st_intersects({path}, ST_GeomFromText('POLYGON(({ring}))'))"}
    if index == 'JSON':
        return {'filter': f"json_get_int({path}, 'n') = {n}"}
    if kind == 'tags':
        return {'filter': f'{path} IS NULL'}
    return {'filter': f'{path} = {n}' if kind == 'int' else f"{path} = '{value}'"}


def uses_index(ds, index: str, kind: str, path: str, n: int) -> bool:
    plan = ds.scanner(columns=['id'], **query(index, kind, path, n)).explain_plan()
    return any(word in plan for word in ('ScalarIndexQuery', 'MatchQuery', 'ANN', 'MinHash'))


def found(ds, index: str, kind: str, path: str, n: int) -> list:
    asked = query(index, kind, path, n)
    near = 'nearest' in asked
    table = ds.to_table(columns=['id', '_distance'] if near else ['id'], **asked)
    rows = table.to_pylist()
    # What is near is not what is asked for: a row has the very value or it does not.
    return sorted({r['id'] for r in rows if not near or r['_distance'] < 1e-3})


def compare(uri: str, optimize: bool):
    ds = lance.dataset(uri)
    if optimize:
        # Of vectors in lists in structs, pylance panics ("fixed size list array").
        names = [index['name'] for index in ds.list_indices() if not index['name'].startswith('nest.vectors_')]
        ds.optimize.optimize_indices(index_names=names)
        ds = lance.dataset(uri)
    scanned = ds.to_table(columns=['id', *{path.split('.')[0] for _, _, path in columns()}]).to_pylist()
    numbers = [*REPLACED, *REPLACED.values(), 0, 5, 40, 41, FRAGMENT + 1, ROWS - 1, 2000]
    for index, kind, path in columns():
        *above, name = path.split('.')
        for n in numbers:
            value = None if (index, kind) == ('ZONEMAP', 'tags') else VALUES[kind][1](n)
            cell = lambda r: ((r['nest'] or {}) if above else r).get(name)
            wanted = sorted(r['id'] for r in scanned if same(kind, cell(r), value))
            got = found(ds, index, kind, path, n)
            if got != wanted:
                yield f'{path} of {n}: the index finds {got}, and there are {wanted}'


def same(kind: str, value, wanted) -> bool:
    if kind == 'doc':
        return value is not None and json.loads(value) == json.loads(wanted)
    if kind in ('vector', 'vectors') and value is not None:
        return np.allclose(value, wanted, atol=1e-4) if np.shape(value) == np.shape(wanted) else False
    return value == wanted


def main(arguments):
    if arguments[0] == 'make':
        return make(arguments[1], 'stable' in arguments)
    wrong = list(compare(arguments[1], 'optimize' in arguments))
    print('\n'.join(wrong) or 'all agree')


main(sys.argv[1:])
