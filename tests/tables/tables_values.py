"""One blob column: every kind of storage, every threshold's edge, null and empty, and External references."""
import lance
import pyarrow as pa
from lance import DatasetBasePath, blob_field

from cells import External
from payloads import EDGE_SIZES, KIB, payload, payloads
from record import Record
from registry import builds

MANAGED = {'lance.blob.managed': 'true'}
ID = pa.field('id', pa.int64())
NAME = pa.field('name', pa.string())
DEFAULT_FIELDS = [ID, NAME, blob_field('blob')]
FIELDS = [ID, NAME, blob_field('blob', dedicated_size_threshold=256 * KIB)]
"""A lower bound for Dedicated than the default 4 MiB, so that tables with every kind stay small."""


def edge_rows(label: str) -> list:
    """Rows with a value at each edge of the default thresholds, and nulls among and after them."""
    values = payloads(label, EDGE_SIZES)
    values.insert(3, None)
    return [{'id': i, 'name': f'file_{i:03d}.bin', 'blob': value} for i, value in enumerate(values + [None])]


def written(output, name, notes, fields, rows, metadata=None, **options):
    """Write a table of one version and return its record."""
    record = Record(output.uri(name), notes)
    record.version(output.create(name, fields, rows, metadata, **options), rows)
    return {name: record}


@builds('scalar')
def scalar(output, _):
    return written(output, 'scalar', 'inline, packed and dedicated by the default thresholds, null, empty, sizes at each edge',
                   DEFAULT_FIELDS, edge_rows('scalar'))


@builds('scalar_2_3')
def scalar_2_3(output, _):
    rows = edge_rows('scalar_2_3')[:11]
    return written(output, 'scalar_2_3', 'as scalar, in file format 2.3', DEFAULT_FIELDS, rows, data_storage_version='2.3')


@builds('managed')
def managed(output, _):
    return written(output, 'managed', 'with lance.blob.managed: more than 64 KiB goes to _blobs/<uuid>.blob',
                   DEFAULT_FIELDS, edge_rows('managed')[:11], MANAGED)


@builds('thresholds')
def thresholds(output, _):
    field = blob_field('blob', inline_size_threshold=64, dedicated_size_threshold=4096, pack_file_size_threshold=8192)
    values = payloads('thresholds', [0, 1, 63, 64, 65, 1000, 4000, 4096, 4097, 9000] + [3000] * 8)
    second = blob_field('none_inline', inline_size_threshold=0)
    rows = [{'id': i, 'blob': value, 'none_inline': value[:7]} for i, value in enumerate(values)]
    return written(output, 'thresholds', 'small thresholds on the columns: every kind with tiny values, several pack objects',
                   [ID, field, second], rows)


@builds('minimal_shape')
def minimal_shape(output, _):
    """The minimal logical schema (data, uri) as a plain struct with the extension name, not nullable in one column."""
    shape = pa.struct([pa.field('data', pa.large_binary()), pa.field('uri', pa.utf8())])
    extension = {'ARROW:extension:name': 'lance.blob.v2'}
    fields = [ID, pa.field('blob', shape, metadata=extension), pa.field('always', shape, nullable=False, metadata=extension)]
    values = payloads('minimal_shape', [3, None, 0, 70_000])
    rows = [{'id': i, 'blob': value, 'always': b'%d' % i} for i, value in enumerate(values)]

    def column(name):
        data = pa.array([row[name] for row in rows], pa.large_binary())
        return pa.StructArray.from_arrays([data, pa.nulls(len(rows), pa.utf8())], fields=list(shape),
                                          mask=pa.array([row[name] is None for row in rows]))

    record = Record(output.uri('minimal_shape'), 'the minimal logical shape of blob v2 (data, uri); one column is not nullable')
    output.remove(output.uri('minimal_shape'))
    arrays = [pa.array(range(len(rows)), pa.int64()), column('blob'), column('always')]
    written_table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
    ds = lance.write_dataset(written_table, output.uri('minimal_shape'), data_storage_version='2.2', storage_options=output.options)
    record.version(ds, rows)
    return {'minimal_shape': record}


# -- External ------------------------------------------------------------------------------------------------

def external_rows(output, label: str) -> list:
    a, b = payload(f'{label}/a', 100_000), payload(f'{label}/b', 1_000_000)
    targets = {f'{label}/a.bin': a, f'{label}/sub dir/b %41ü.bin': b, f'{label}/empty.bin': b''}
    for path, content in targets.items():
        output.put_external(path, content)
    first, second, empty = targets
    values = [output.reference(first, a), output.reference(first, a, 10, 1000), output.reference(second, b),
              output.reference(second, b, 700_000, 300_000), output.reference(empty, b''), b'inline beside', None]
    return [{'id': i, 'name': f'external-{i}', 'blob': value} for i, value in enumerate(values)]


def failing_rows(output, label: str, start: int) -> list:
    """References that must fail one by one: a missing target, and a range past the end of one."""
    output.put_external(f'{label}/short.bin', b'short')
    short = output.reference(f'{label}/short.bin', None, 3, 100)
    return [{'id': start, 'name': 'missing', 'blob': output.reference(f'{label}/does-not-exist.bin', None)},
            {'id': start + 1, 'name': 'short', 'blob': short}, {'id': start + 2, 'name': 'after', 'blob': b'after'}]


@builds('external')
def external(output, _):
    rows = external_rows(output, 'external')
    rows += failing_rows(output, 'external', len(rows))
    return written(output, 'external', 'absolute External URIs: whole, ranged, empty, missing, past the end; inline and null beside them',
                   FIELDS, rows, allow_external_blob_outside_bases=True)


@builds('external_outside', local_only=True)
def external_outside(output, _):
    """The same files by another scheme: not the table's store, though a reader that may use it reads them."""
    rows = []
    for row in external_rows(output, 'external_outside'):
        value = row['blob']
        if isinstance(value, External):
            value = value._replace(uri=value.uri.replace('file://', 'file-object-store://'), outside=True)
        rows.append(row | {'blob': value})
    rows.append({'id': len(rows), 'name': 'bucket', 'blob': External('s3://lancefs-no-such-bucket/object.bin', None, 0, 10, outside=True)})
    return written(output, 'external_outside', 'External URIs in stores that are not the table\'s: refused without --allow-external',
                   FIELDS, rows, allow_external_blob_outside_bases=True)


@builds('external_base')
def external_base(output, _):
    rows = external_rows(output, 'external_base')
    rows += failing_rows(output, 'external_base', len(rows))
    inside = [row | {'blob': row['blob']._replace(outside=False) if isinstance(row['blob'], External) else row['blob']} for row in rows]
    base = DatasetBasePath(output.external_base(), name='ext', is_dataset_root=False)
    return written(output, 'external_base', 'as external, relative to a registered base', FIELDS, inside, initial_bases=[base])


@builds('external_ingest')
def external_ingest(output, _):
    """External input that is copied at write; the sources are removed afterwards."""
    rows = external_rows(output, 'external_ingest')
    base = DatasetBasePath(output.external_base(), name='ext', is_dataset_root=False)
    shown = [row | {'blob': row['blob'].content if isinstance(row['blob'], External) else row['blob']} for row in rows]
    record = Record(output.uri('external_ingest'), 'URIs that were ingested: stored as bytes, the sources are gone')
    ds = output.create('external_ingest', FIELDS, rows, initial_bases=[base], external_blob_mode='ingest')
    output.remove(f'{output.external_base()}/external_ingest')
    record.version(ds, shown)
    return {'external_ingest': record}
