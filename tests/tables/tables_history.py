"""Tables with a past: each version's rows, after every operation that makes one."""
from datetime import timedelta

import pyarrow as pa
from lance import blob_field

from cells import table
from payloads import payload
from record import Record
from registry import builds
from tables_values import FIELDS, ID, MANAGED, NAME

SIZES = [1000, 100_000, 300_000, 2000, 0, 70_000, None, 4000]


def item(label: str, i: int) -> dict:
    size = SIZES[i % len(SIZES)]
    return {'id': i, 'name': f'row-{i}', 'blob': None if size is None else payload(f'{label}/{i}', size)}


class Story:
    """A table under change: what its rows are, by id, and the versions recorded so far."""

    def __init__(self, output, name, notes, fields=FIELDS, kind=None):
        self.output, self.name, self.fields, self.kind = output, name, fields, kind
        self.record = Record(output.uri(name), notes)
        self.rows = {}

    def create(self, rows, metadata=None, **options):
        self.rows = {row['id']: row for row in rows}
        self.note(self.output.create(self.name, self.fields, rows, metadata, **options))

    def append(self, rows, **options):
        self.rows |= {row['id']: row for row in rows}
        self.note(self.output.append(self.name, self.fields, rows, **options))

    def overwrite(self, rows, **options):
        self.rows = {row['id']: row for row in rows}
        self.note(self.output.write(self.name, self.fields, rows, 'overwrite', **options))

    def delete(self, *ids):
        for i in ids:
            self.rows.pop(i)
        self.open().delete(f'id in ({", ".join(map(str, ids))})')
        self.note()

    def compact(self, **options):
        """Compact; the version that only reserves fragment numbers shows the same rows."""
        self.open().optimize.compact_files(target_rows_per_fragment=1 << 20, **options)
        self.note()

    def open(self, version=None):
        return self.output.open(self.name, version)

    def note(self, ds=None):
        """Record the newest version, and those that an operation left between it and the one before."""
        newest = (ds or self.open()).version
        for version in range(self.record.entry['latest'] + 1, newest + 1):
            ds = self.open(version)
            self.record.version(ds, in_order(ds, self.rows), kind=self.kind)

    def records(self):
        return {self.name: self.record}


def in_order(ds, rows: dict) -> list:
    """Return the rows in the table's order, which updates and merges change; their ids must be exactly those of `rows`."""
    order = ds.to_table(columns=['id'])['id'].to_pylist()
    assert sorted(order) == sorted(rows), (ds.uri, ds.version, order, sorted(rows))
    return [rows[i] for i in order]


@builds('history')
def history(output, _):
    story = Story(output, 'history', 'stable row ids; 5 rows in 2 fragments, 3 appended, ids 1 and 6 deleted; a tag before that')
    story.create([item('history', i) for i in range(5)], max_rows_per_file=3, enable_stable_row_ids=True)
    story.append([item('history', i) for i in range(5, 8)])
    story.delete(1, 6)
    story.record.tag(story.open(), 'before-delete', 2)
    return story.records()


@builds('deletes')
def deletes(output, _):
    story = Story(output, 'deletes', 'deletes across versions and fragments: one row, a whole fragment, first and last rows, all rows')
    story.create([item('deletes', i) for i in range(12)], max_rows_per_file=4)
    story.delete(5)
    story.delete(4, 6, 7)
    story.delete(0, 11)
    story.append([item('deletes', i) for i in range(12, 14)])
    story.delete(*list(story.rows))
    return story.records()


@builds('overwrite')
def overwrite(output, _):
    story = Story(output, 'overwrite', 'overwritten with another schema: old versions keep the old columns, the newest has no blob')
    story.create([item('overwrite', i) for i in range(4)])
    story.fields = [ID, blob_field('other'), pa.field('n', pa.float64())]
    story.overwrite([{'id': i, 'other': payload(f'overwrite/other/{i}', 70_000 * i), 'n': i / 2} for i in range(2)])
    story.fields = [ID, NAME]
    story.overwrite([{'id': 9, 'name': 'plain'}])
    return story.records()


@builds('evolution')
def evolution(output, _):
    info = pa.struct([pa.field('title', pa.string()), blob_field('thumb')])
    story = Story(output, 'evolution', 'columns added, renamed, retyped and dropped; blob columns added as null and with values',
                  FIELDS + [pa.field('info', info)])

    def row(i):
        return item('evolution', i) | {'info': {'title': f't{i}', 'thumb': payload(f'evolution/thumb/{i}', i * 20_000)} if i % 3 else None}

    def change(new):
        story.rows = {i: new(old) for i, old in story.rows.items()}
        story.note()

    def renamed(row, old, new):
        return {new if name == old else name: value for name, value in row.items()}
    story.create([row(i) for i in range(5)], max_rows_per_file=3)
    story.open().add_columns({'twice': 'id * 2'})
    change(lambda r: r | {'twice': r['id'] * 2})
    story.open().add_columns(blob_field('later'))
    change(lambda r: r | {'later': None})
    story.fields = story.fields + [pa.field('twice', pa.int64()), blob_field('later')]
    story.append([row(i) | {'twice': -i, 'later': payload(f'evolution/later/{i}', 40_000 * i)} for i in (5, 6)])
    story.open().alter_columns({'path': 'name', 'name': 'label'})
    change(lambda r: renamed(r, 'name', 'label'))
    story.open().alter_columns({'path': 'blob', 'name': 'image'})
    change(lambda r: renamed(r, 'blob', 'image'))
    story.open().alter_columns({'path': 'info.thumb', 'name': 'small'})
    change(lambda r: r | {'info': r['info'] and renamed(r['info'], 'thumb', 'small')})
    story.open().alter_columns({'path': 'id', 'data_type': pa.int32()})
    change(lambda r: r)
    added = [blob_field('added')]
    values = [{'added': payload(f'evolution/added/{i}', 30_000 * i) if i != 2 else None} for i in range(7)]
    story.open().add_columns(table(added, values).to_reader())
    for i, value in zip(list(story.rows), values):
        story.rows[i] = story.rows[i] | value
    story.note()
    story.open().drop_columns(['later'])
    change(lambda r: {name: value for name, value in r.items() if name != 'later'})
    story.delete(1, 5)
    story.compact()
    return story.records()


@builds('merge')
def merge(output, _):
    return _merge(output, 'merge', False)


@builds('merge_stable')
def merge_stable(output, _):
    return _merge(output, 'merge_stable', True)


def _merge(output, name, stable):
    story = Story(output, name, 'merge_insert with blobs and without, update of another column' + ('; stable row ids' if stable else ''))
    story.create([item(name, i) for i in range(6)], max_rows_per_file=4, enable_stable_row_ids=stable)
    new = [item(f'{name}/new', i) | {'name': f'merged-{i}'} for i in (1, 4, 7)]
    story.rows |= {row['id']: row for row in new}
    story.open().merge_insert('id').when_matched_update_all().when_not_matched_insert_all().execute(table(FIELDS, new))
    story.note()
    story.open().update({'name': "'updated'"}, where='id in (0, 2, 5)')
    story.rows |= {i: story.rows[i] | {'name': 'updated'} for i in (0, 2, 5)}
    story.note()
    partial = [{'id': i, 'name': f'partial-{i}'} for i in (3, 4)]
    story.open().merge_insert('id').when_matched_update_all().execute(table([ID, NAME], partial))
    story.rows |= {row['id']: story.rows[row['id']] | row for row in partial}
    story.note()
    return story.records()


@builds('compaction')
def compaction(output, _):
    story = Story(output, 'compaction', 'compacted without managed storage, appended to, opted in, compacted again (sidecars adopted), appended to')
    story.create([item('compaction', i) for i in range(6)], max_rows_per_file=2)
    story.delete(1)
    story.compact()
    story.append([item('compaction', i) for i in (7, 8)])
    story.open().update_schema_metadata(MANAGED)
    story.note()
    story.compact()
    story.append([item('compaction', i) for i in (13, 14)])
    return story.records()


@builds('restore')
def restore(output, _):
    story = Story(output, 'restore', 'version 1 restored as the newest after an append and the managed opt-in')
    story.create([item('restore', i) for i in range(4)])
    before = dict(story.rows)
    story.append([item('restore', i) for i in range(4, 6)])
    story.open().update_schema_metadata(MANAGED)
    story.note()
    story.append([item('restore', 9)])
    story.open(1).restore()
    story.rows = before
    story.note()
    story.append([item('restore', 13)])
    return story.records()


@builds('cleaned')
def cleaned(output, _):
    """Old versions removed by a cleanup; a tag keeps one of them."""
    story = Story(output, 'cleaned', 'versions removed by cleanup, one in the middle kept by a tag; managed')
    story.create([item('cleaned', i) for i in range(4)], MANAGED)
    for i in range(4, 9):
        story.append([item('cleaned', i)])
    story.delete(0, 1)
    story.record.tag(story.open(), 'keep', 3)
    story.open().cleanup_old_versions(older_than=timedelta(0), retain_versions=2, error_if_tagged_old_versions=False)
    kept = {v['version'] for v in story.open().versions()}
    story.record.forget(*(v for v in map(int, list(story.record.entry['versions'])) if v not in kept))
    return story.records()
