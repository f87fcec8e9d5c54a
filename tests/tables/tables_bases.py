"""Data files and payloads under other bases than the table's root, and prepared Managed references."""
import lance
import pyarrow as pa
from lance import BlobDescriptorArrayBuilder, DatasetBasePath

from cells import Broken
from payloads import INLINE_MAX, KIB, payload, payloads
from registry import builds
from tables_history import Story
from tables_values import FIELDS, ID, MANAGED, written


@builds('multibase')
def multibase(output, _):
    return _under_base(output, 'multibase', 'data and sidecars in a base that holds data only', is_root=False)


@builds('multibase_root')
def multibase_root(output, _):
    return _under_base(output, 'multibase_root', 'data and sidecars under data/ of a base that is a dataset root', is_root=True)


@builds('multibase_managed')
def multibase_managed(output, _):
    return _under_base(output, 'multibase_managed', 'managed values in a base that holds data only', is_root=False, metadata=MANAGED)


@builds('multibase_managed_root')
def multibase_managed_root(output, _):
    return _under_base(output, 'multibase_managed_root', 'managed values in a base that is a dataset root', is_root=True, metadata=MANAGED)


def _under_base(output, name, notes, is_root, metadata=None):
    """One fragment in the second base, then one in the table's root."""
    rows = _rows(name)
    base = DatasetBasePath(output.fresh_base(name), name='second', is_dataset_root=is_root)
    records = written(output, name, notes + '; an appended fragment is in the root', FIELDS, rows, metadata,
                      initial_bases=[base], target_bases=['second'])
    more = _appended(name)
    records[name].version(output.append(name, FIELDS, more), rows + more)
    return records


def _rows(name):
    values = payloads(name, [INLINE_MAX, INLINE_MAX + 1, None, 200_000, 300_000, 0, 100])
    return [{'id': i, 'name': f'file_{i:03d}.bin', 'blob': value} for i, value in enumerate(values)]


def _appended(name):
    return [{'id': 100, 'name': 'appended', 'blob': payload(f'{name}/appended', 80_000)}, {'id': 101, 'blob': b'tiny'}]


@builds('managed_with_base')
def managed_with_base(output, _):
    """Managed values of a second base, moved into the root by compaction: they keep their object and name its base."""
    records = _under_base(output, 'managed_with_base', 'managed values of a second base after compaction into the root', False, MANAGED)
    story = Story(output, 'managed_with_base', '', FIELDS)
    story.record = records['managed_with_base']
    story.rows = {row['id']: row for row in _rows('managed_with_base') + _appended('managed_with_base')}
    story.compact()
    return story.records()


@builds('prepared')
def prepared(output, _):
    """Managed references as an uploader writes them: many values in one object, with a base and without."""
    name, pack = 'prepared', payload('prepared', 200 * KIB)
    base_uri = output.fresh_base(name)
    base = DatasetBasePath(base_uri, name='second', is_dataset_root=False)
    seed = [{'id': 0, 'name': 'seed', 'blob': b'seed'}]
    records = written(output, name, 'prepared Managed references into shared objects, kinds 4 and 5, empty ranges, an object that is missing',
                      FIELDS, seed, MANAGED, initial_bases=[base])
    base_id = next(iter(output.open(name)._ds.base_paths()))
    output.put(f'{output.uri(name)}/_blobs/pack.blob', pack)
    output.put(f'{base_uri}/deep/er/pack.blob', pack[::-1])
    builder = BlobDescriptorArrayBuilder('blob')
    shown = []

    def managed(uri, offset, size, content, **base):
        builder.append_managed(uri, offset, size, **base)
        shown.append(content)

    managed('_blobs/pack.blob', 0, 1000, pack[:1000])
    managed('_blobs/pack.blob', 1000, 100 * KIB, pack[1000:1000 + 100 * KIB])
    managed('_blobs/pack.blob', 0, len(pack), pack)
    managed('_blobs/pack.blob', 500, 0, b'')
    managed('_blobs/missing.blob', 0, 0, b'')
    managed('_blobs/missing.blob', 0, 5, Broken(None))
    managed('_blobs/pack.blob', 200 * KIB - 5, 6, Broken(None))
    managed('deep/er/pack.blob', 7, 70_000, pack[::-1][7:70_007], base_id=base_id)
    managed('deep/er/pack.blob', 0, 0, b'', base_id=base_id)
    builder.append_null(); shown.append(None)  # noqa: E702
    builder.append_inline(b'inline'); shown.append(b'inline')  # noqa: E702
    more = [{'id': i + 1, 'name': f'prepared-{i}', 'blob': value} for i, value in enumerate(shown)]
    arrays = [pa.array([row['id'] for row in more], pa.int64()), pa.array([row['name'] for row in more]), builder.finish()]
    table = pa.Table.from_arrays(arrays, schema=pa.schema([ID, FIELDS[1], builder.field]))
    ds = lance.write_dataset(table, output.uri(name), mode='append', storage_options=output.options)
    records[name].version(ds, seed + more)
    return records
