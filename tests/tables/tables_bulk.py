"""Tables of many things, and tables of nothing."""
import lance
import pyarrow as pa
from lance import blob_array, blob_field

from payloads import MIB, payload
from record import Record
from registry import builds
from store import DEFAULT_VERSION
from tables_history import Story
from tables_values import FIELDS, ID, NAME, written

BATCH = 50_000


@builds('empty')
def empty(output, _):
    return written(output, 'empty', 'no rows', FIELDS, [])


@builds('no_blobs')
def no_blobs(output, _):
    fields = [ID, NAME, pa.field('raw', pa.large_binary())]
    return written(output, 'no_blobs', 'no blob column', fields, [{'id': i, 'name': f'n{i}'} for i in range(3)])


@builds('many_rows')
def many_rows(output, _):
    rows = [{'id': i, 'name': f'n{i}', 'blob': payload(f'many_rows/{i}', i % 50) if i % 11 else None} for i in range(300)]
    return written(output, 'many_rows', '300 rows of small values in one fragment', FIELDS, rows)


@builds('many_fragments')
def many_fragments(output, _):
    rows = [{'id': i, 'name': f'n{i}', 'blob': payload(f'many_fragments/{i}', 10 + i)} for i in range(120)]
    story = Story(output, 'many_fragments', '40 fragments of 3 rows; version 2 without the whole of some and parts of others')
    story.create(rows, max_rows_per_file=3)
    story.delete(0, 3, 4, 5, 58, 59, 60, 61, 119)
    return story.records()


@builds('million', default=False)
def million(output, settings):
    """Written in batches; an `id` and a value of the id's digits."""
    name, schema = 'million', pa.schema([ID, blob_field('blob')])
    output.remove(output.uri(name))

    def batches():
        for start in range(0, settings.rows, BATCH):
            ids = range(start, min(start + BATCH, settings.rows))
            yield pa.record_batch([pa.array(ids, pa.int64()), blob_array([b'%d' % i for i in ids])], schema=schema)
    ds = lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches()), output.uri(name), data_storage_version=DEFAULT_VERSION,
                             storage_options=output.options)
    return {name: _counted(output, name, f'{settings.rows} rows; the value of row n is the digits of n', ds.version, settings.rows)}


@builds('versions_10k', default=False)
def versions(output, settings):
    """One row, then a version for each change of a configuration value: no data file is written."""
    name = 'versions_10k'
    ds = output.create(name, FIELDS, [{'id': 0, 'name': 'only', 'blob': b'only'}])
    while ds.version < settings.versions:
        ds.update_config({'counter': str(ds.version)})
    return {name: _counted(output, name, f'{settings.versions} versions of one row', ds.version, 1)}


@builds('big', default=False)
def big(output, settings):
    rows = [{'id': 0, 'name': 'big', 'blob': payload('big', settings.big_mib * MIB)}, {'id': 1, 'name': 'small', 'blob': b'small'}]
    return written(output, 'big', f'one value of {settings.big_mib} MiB', FIELDS, rows)


def _counted(output, name, notes, version, count):
    record = Record(output.uri(name), notes)
    record.entry |= {'latest': version, 'versions': {str(n): {'count': count} for n in range(1, version + 1)}}
    return record
