"""The manifest: for every table, version, tag and branch, what a mount must show."""

from cells import has_blob, shown_row


class Record:
    """One table's entry in the manifest, filled while the table is written."""

    def __init__(self, uri: str, notes: str):
        self.entry = {'uri': uri, 'notes': notes, 'latest': 0, 'versions': {}, 'tags': {}, 'branches': {}}

    def version(self, ds, rows, branch=None, kind=None):
        """Record `rows` as the live rows of the version that `ds` has open, in row order.

        `kind` names the stored kind of every value where the descriptors cannot be scanned; else they are read back.
        """
        place = self.entry if branch is None else self.entry['branches'].setdefault(branch, {'latest': 0, 'versions': {}})
        place['latest'] = max(place['latest'], ds.version)
        stored = [{}] * len(rows) if kind else _descriptors(ds)
        assert len(stored) == len(rows), (self.entry['uri'], ds.version, len(stored), len(rows))
        place['versions'][str(ds.version)] = {'rows': [shown_row(ds.schema, row, d, kind) for row, d in zip(rows, stored)]}

    def unopenable(self, version: int):
        self.entry['latest'] = max(self.entry['latest'], version)
        self.entry['versions'][str(version)] = {'error': True}

    def forget(self, *versions: int):
        """Take out versions that a cleanup removed."""
        for version in versions:
            del self.entry['versions'][str(version)]

    def tag(self, ds, name: str, version: int, branch=None):
        ds.tags.create(name, version if branch is None else (branch, version))
        self.entry['tags'][name] = {'branch': branch, 'version': version}


def _descriptors(ds) -> list:
    """Return the blob columns' descriptors per row, as a plain scan shows them."""
    blobs = [field.name for field in ds.schema if has_blob(field)]
    if not blobs:
        return [{}] * ds.count_rows()
    try:
        scanned = ds.to_table(columns=blobs)
    except ValueError:  # a name that cannot be projected, such as an empty one
        scanned = ds.to_table()
    columns = {name: scanned.column(scanned.schema.get_field_index(name)).to_pylist() for name in blobs}
    return [{name: column[i] for name, column in columns.items()} for i in range(scanned.num_rows)]
