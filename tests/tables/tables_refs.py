"""Tags, branches and clones."""
import lance

from cells import table
from registry import builds
from tables_history import Story, in_order, item
from tables_values import FIELDS, MANAGED

UNICODE_TAG = 'リリース-ü'
TAGS = {'3': 1, 'latest': 2, '-': 1, 'v1.0': 2, UNICODE_TAG: 2}
BRANCHES = ['a', 'a/b', 'v1.2.x', 'ünï', '1', 'latest']


@builds('refs')
def refs(output, _):
    return _refs(output, 'refs', None)


@builds('refs_managed')
def refs_managed(output, _):
    return _refs(output, 'refs_managed', MANAGED)


def _refs(output, name, metadata):
    """Branches that start at different versions and go different ways, so that one number means several versions."""
    story = Story(output, name, 'tags named 3, latest, -, v1.0 and in unicode, one on a branch; branches a, a/b, v1.2.x, …')
    story.create([item(name, i) for i in range(4)], metadata)
    story.append([item(name, 5)])
    story.delete(0)
    record = story.record
    main = {i: item(name, i) for i in (1, 2, 3, 5)}
    for k, branch in enumerate(BRANCHES):
        source = ('a', 4) if branch == 'a/b' else (None, 3)
        ds = story.open().create_branch(branch, source)
        rows = dict(main)
        if branch == 'a/b':
            rows |= {100: item(f'{name}/a', 100)}
        record.version(ds, in_order(ds, rows), branch)
        more = [item(f'{name}/{branch}', 100 * (k + 1))]
        rows |= {row['id']: row for row in more}
        lance.write_dataset(table(FIELDS, more), ds, mode='append', storage_options=output.options)
        ds = story.open().checkout_version((branch, None))
        record.version(ds, in_order(ds, rows), branch)
        if branch == 'v1.2.x':
            ds.delete('id in (2, 3)')
            rows = {i: row for i, row in rows.items() if i not in (2, 3)}
            ds = story.open().checkout_version((branch, None))
            record.version(ds, in_order(ds, rows), branch)
    story.append([item(name, 13)])
    for tag, version in TAGS.items():
        record.tag(story.open(), tag, version)
    record.tag(story.open(), 'on-a', 4, 'a')
    record.tag(story.open(), 'on-ab', 5, 'a/b')
    return story.records()


@builds('clone_source', 'clone_shallow', 'clone_deep', 'clone_of_clone')
def clones(output, _):
    return clone_family(output, 'clone', FIELDS, item, None)


@builds('clone_managed_source', 'clone_managed_shallow', 'clone_managed_deep', 'clone_managed_of_clone')
def clones_managed(output, _):
    return clone_family(output, 'clone_managed', FIELDS, item, MANAGED)


def clone_family(output, prefix, fields, make_item, metadata, **options):
    """A table, a shallow clone of it that was appended to, a deep clone, and a shallow clone of the shallow clone; the last two compacted."""
    source = Story(output, f'{prefix}_source', 'the table that the clones are made from', fields)
    source.create([make_item(prefix, i) for i in range(5)], metadata, max_rows_per_file=3, **options)
    source.delete(3)
    stories, records = {'source': source}, source.records()
    for number, (name, parent_name) in enumerate((('shallow', 'source'), ('deep', 'source'), ('of_clone', 'shallow'))):
        of = stories[parent_name]
        clone = Story(output, f'{prefix}_{name}', f'{name} clone', fields)
        output.remove(output.uri(clone.name))
        parent = of.open()
        if name == 'deep':
            parent.deep_clone(output.uri(clone.name), parent.version)
        else:
            parent.shallow_clone(output.uri(clone.name), parent.version)
        clone.rows = dict(of.rows)
        ds = clone.open()
        clone.record.entry['latest'] = ds.version - 1
        clone.note()
        clone.append([make_item(f'{prefix}/{name}', 45 + number)], **options)
        if name != 'shallow':
            clone.compact()
        stories[name] = clone
        records |= clone.records()
    return records
