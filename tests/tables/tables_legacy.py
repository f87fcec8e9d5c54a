"""Blob v1 (marked large_binary in files before 2.2), older and newer plain files, and what the 14.0.2 reader fails on."""
import lance
import pyarrow as pa

from cells import ANY, blob_v1, table
from payloads import payload, payloads
from record import Record
from registry import builds
from tables_history import Story, in_order
from tables_refs import clone_family
from tables_values import ID, MANAGED, NAME, written

FIELDS = [ID, NAME, blob_v1('blob')]
SIZES = [10, 0, None, 100_000, 300_000, 5]


def item(label: str, i: int) -> dict:
    size = SIZES[i % len(SIZES)]
    return {'id': i, 'name': f'row-{i}', 'blob': None if size is None else payload(f'{label}/{i}', size)}


@builds('legacy_2_0')
def legacy_2_0(output, _):
    return written(output, 'legacy_2_0', 'blob v1 in a 2.0 file: null, empty, values', FIELDS, [item('legacy_2_0', i) for i in range(6)],
                   data_storage_version='2.0')


@builds('legacy_2_1')
def legacy_2_1(output, _):
    return written(output, 'legacy_2_1', 'blob v1 in a 2.1 file: null, empty, values', FIELDS, [item('legacy_2_1', i) for i in range(6)],
                   data_storage_version='2.1')


@builds('legacy_stable')
def legacy_stable(output, _):
    story = Story(output, 'legacy_stable', 'blob v1 at 2.1, two fragments, stable row ids, a delete, an append without the mark, a compaction', FIELDS)
    story.create([item('legacy_stable', i) for i in range(6)], max_rows_per_file=3, data_storage_version='2.1', enable_stable_row_ids=True)
    story.delete(1)
    marked, story.fields = story.fields, [ID, NAME, pa.field('blob', pa.large_binary())]
    story.append([item('legacy_stable', i) for i in (9, 12)], data_storage_version='2.1')
    story.fields = marked
    story.compact()
    return story.records()


@builds('legacy_nulls')
def legacy_nulls(output, _):
    """100 nulls, rows without the column, and a v1 column added later."""
    story = Story(output, 'legacy_nulls', 'v1 columns of nulls alone: written, missing from an append, added later', [ID, blob_v1('blob')])
    story.create([{'id': i} for i in range(100)], data_storage_version='2.1')
    story.fields = [ID]
    story.append([{'id': i} for i in range(100, 110)], data_storage_version='2.1')
    story.open().add_columns(blob_v1('added'))
    story.note()
    return story.records()


@builds('legacy_nested')
def legacy_nested(output, _):
    records = {}
    info = pa.struct([blob_v1('thumb'), pa.field('n', pa.string())])
    values = payloads('legacy_nested', [3, None, 0, 70_000])
    for version in ('2.0', '2.1'):
        rows = [{'id': i, 'info': {'thumb': value, 'n': 'n'}} for i, value in enumerate(values)]
        records |= written(output, 'legacy_nested_' + version.replace('.', '_'), f'struct<v1 blob> at {version}', [ID, pa.field('info', info)], rows,
                           data_storage_version=version)
    return records


@builds('legacy_list')
def legacy_list(output, _):
    p = payloads('legacy_list', [3, 0, 70_000, 1])
    lists = [[p[0]], [None, p[1]], [p[2], p[3]], []]
    rows = [{'id': i, 'list': value} for i, value in enumerate(lists)]
    return written(output, 'legacy_list', 'list<v1 blob> at 2.0', [ID, pa.field('list', pa.list_(blob_v1('item')))], rows, data_storage_version='2.0')


@builds('panicking')
def panicking(output, _):
    """list<v1 blob> at 2.1: the released writer makes it and the released reader fails on one column and panics on two."""
    record = Record(output.uri('panicking'), 'list<v1 blob> at 2.1, which the 14.0.2 reader cannot read; the columns beside them read')
    p = payloads('panicking', [3, 0, 70_000, 1])
    lists = {'failing': [[p[0]], [None, p[1]], [p[2]]], 'panicking': [[p[0], p[3]], None, []], 'panicking_too': [[p[0]], [p[1], p[3]], [p[2]]]}
    fields = [ID, *(pa.field(name, pa.list_(blob_v1('item'))) for name in lists), blob_v1('blob')]
    rows = [{'id': i, 'blob': p[i]} | {name: values[i] for name, values in lists.items()} for i in range(3)]
    ds = output.create('panicking', fields, rows, data_storage_version='2.1')
    readable = [{'id': row['id'], 'blob': row['blob']} for row in rows]
    record.version(ds, readable, kind='legacy')
    for row in record.entry['versions']['1']['rows']:
        row['json'] |= {name: ANY for name in lists}
        row['unmade'] = True
        row['files'] |= {f'{name}[0].bin': {'error': 'EIO', 'listed': False} for name in lists}
    return {'panicking': record}


@builds('legacy_branch')
def legacy_branch(output, _):
    story = Story(output, 'legacy_branch', 'a branch of a blob v1 table: its first fragments are in the main folder', FIELDS)
    story.create([item('legacy_branch', i) for i in range(4)], data_storage_version='2.1')
    ds = story.open().create_branch('side', 1)
    rows = dict(story.rows)
    story.record.version(ds, in_order(ds, rows), 'side')
    rows[9] = item('legacy_branch/side', 9)
    lance.write_dataset(table(FIELDS, [rows[9]]), ds, mode='append', storage_options=output.options)
    ds = story.open().checkout_version(('side', None))
    story.record.version(ds, in_order(ds, rows), 'side')
    story.append([item('legacy_branch', 9)], data_storage_version='2.1')
    return story.records()


@builds('legacy_clone_source', 'legacy_clone_shallow', 'legacy_clone_deep', 'legacy_clone_of_clone')
def legacy_clones(output, _):
    return clone_family(output, 'legacy_clone', FIELDS, item, None, data_storage_version='2.1')


@builds('legacy_input')
def legacy_input(output, _):
    """Marked binary input to newer files: it becomes blob v2, with the table's policy."""
    records = {}
    for version, metadata in (('2.2', None), ('2.3', MANAGED)):
        name = 'legacy_input_' + version.replace('.', '_')
        records |= written(output, name, f'marked large_binary input written at {version}: stored as blob v2', FIELDS,
                           [item(name, i) for i in range(6)], metadata, data_storage_version=version)
    return records


@builds('legacy_upgraded')
def legacy_upgraded(output, _):
    story = Story(output, 'legacy_upgraded', 'blob v1 at 2.1, compacted into a 2.2 file', FIELDS)
    story.create([item('legacy_upgraded', i) for i in range(6)], max_rows_per_file=3, data_storage_version='2.1')
    story.compact(data_storage_version='2.2')
    story.append([item('legacy_upgraded', 9)])
    return story.records()


@builds('legacy_0_1', 'legacy_nested_0_1')
def legacy_0_1(output, _):
    """The 0.1 format keeps no descriptors: the mark is there, the bytes are in the column, and an empty value is a null."""
    story = Story(output, 'legacy_0_1', 'marked large_binary in 0.1 files: a descriptor scan panics, a scan for bytes reads', FIELDS, kind='legacy')
    rows = [{'id': i, 'name': f'n{i}', 'blob': value} for i, value in enumerate(payloads('legacy_0_1', [3, None, 70_000, 1, 300_000, 5]))]
    story.create(rows, max_rows_per_file=4, max_rows_per_group=3, data_storage_version='0.1')
    story.append([{'id': 9, 'name': 'n9', 'blob': None}, {'id': 10, 'name': None, 'blob': payload('legacy_0_1/10', 2)}], data_storage_version='0.1')
    story.delete(2)
    nested = Record(output.uri('legacy_nested_0_1'), 'struct<v1 blob, text> in a 0.1 file, and empty values')
    values = payloads('legacy_nested_0_1', [3, None, 0, 70_000])
    fields = [ID, pa.field('info', pa.struct([pa.field('n', pa.string()), blob_v1('thumb')])), blob_v1('last')]
    rows = [{'id': i, 'info': {'n': f'n{i}', 'thumb': value}, 'last': value} for i, value in enumerate(values)]
    ds = output.create('legacy_nested_0_1', fields, rows, data_storage_version='0.1')
    shown = [row | {'info': row['info'] | {'thumb': row['last'] or None}, 'last': row['last'] or None} for row in rows]
    nested.version(ds, shown, kind='legacy')
    return story.records() | {'legacy_nested_0_1': nested}


@builds('plain_0_1', 'plain_2_0', 'plain_2_1', 'plain_2_2', 'plain_2_3')
def plain(output, _):
    records = {}
    for version in ('0.1', '2.0', '2.1', '2.2', '2.3'):
        rows = [{'id': i, 'name': f'row-{i}' if i != 2 else None, 'list': [i] if i else []} for i in range(4)]
        fields = [ID, NAME, pa.field('list', pa.list_(pa.int32()))]
        records |= written(output, 'plain_' + version.replace('.', '_'), f'no blobs, file format {version}', fields, rows, data_storage_version=version)
    return records
