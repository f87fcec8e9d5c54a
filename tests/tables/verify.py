"""Read every table of a manifest back with pylance and compare, without the code that wrote the expectations."""
import base64
import hashlib
import math
import sys

import lance
import pyarrow as pa

MAX_SHOWN = 40
UNREAD = 'unread'
ANY = {'any': True}


def differences(manifest: dict, options) -> int:
    """Print what differs and return how many values do."""
    found = [(name, *difference) for name, entry in manifest['tables'].items() for difference in _table(entry, options)]
    unread = [difference for difference in found if UNREAD in difference]
    found = [difference for difference in found if UNREAD not in difference]
    for difference in found[:MAX_SHOWN]:
        print('differs:', *difference, file=sys.stderr)
    print(f'verify: {len(found)} differences, {len(unread)} values that pylance cannot address by name')
    return len(found)


def _table(entry, options):
    main = lance.dataset(entry['uri'], storage_options=options, version=_newest_that_opens(entry))
    yield from _versions(entry, lambda version: lance.dataset(entry['uri'], storage_options=options, version=version), 'main')
    for branch, place in entry['branches'].items():
        yield from _versions(place, lambda version: main.checkout_version((branch, version)), branch)
    if {b for b in main.branches.list()} != set(entry['branches']):
        yield 'branches', main.branches.list()
    for tag, target in entry['tags'].items():
        if main.tags.get_version(tag) != target['version'] or main.checkout_version(tag).version != target['version']:
            yield 'tag', tag


def _newest_that_opens(entry):
    return max(int(n) for n, version in entry['versions'].items() if 'error' not in version)


def _versions(place, open_version, branch):
    if place['latest'] != max(map(int, place['versions'])):
        yield branch, 'latest', place['latest']
    newest = None
    for number, expected in place['versions'].items():
        if 'error' in expected:
            try:
                open_version(int(number)).count_rows()
                yield branch, number, 'opens'
            except Exception:  # noqa: S110, BLE001: any failure is the expected one
                pass
            continue
        newest = open_version(int(number))
        if 'count' in expected:
            if newest.count_rows() != expected['count']:
                yield branch, number, 'count', newest.count_rows()
            continue
        yield from ((branch, number, *d) for d in _version(newest, expected['rows']))
    if newest is not None:
        listed = {v['version'] for v in newest.versions()} if all('error' not in v for v in place['versions'].values()) else None
        if listed is not None and listed != set(map(int, place['versions'])):
            yield branch, 'versions', listed


def _version(ds, rows):
    if ds.count_rows() != len(rows):
        yield 'count', ds.count_rows(), len(rows)
        return
    try:
        read = ds.to_table(blob_handling='all_binary')
    except Exception as error:  # noqa: BLE001: the failure is looked at row by row
        yield from _row_by_row(ds, rows, error)
        return
    if any('error' in cell for row in rows for cell in row['files'].values()):
        yield 'reads, though a cell should fail'
    for i, row in enumerate(rows):
        for j, field in enumerate(ds.schema):
            yield from ((i, *d) for d in _value(field, read.column(j)[i], row['json'][field.name], row['files']))


def _row_by_row(ds, rows, error):
    """Read each value alone: those that must fail do, the others do not."""
    for i, row in enumerate(rows):
        for field in ds.schema:
            fails = _must_fail(field.name, row)
            try:
                read = ds.to_table(columns=[field.name], limit=1, offset=i, blob_handling='all_binary')
            except Exception as alone:  # noqa: BLE001
                if 'No field named' in str(alone):
                    yield i, field.name, UNREAD
                elif not fails:
                    yield i, field.name[:20], f'fails: {str(alone)[:120]}', str(error)[:80]
                continue
            if fails and row['json'][field.name] != ANY:
                yield i, field.name, 'reads, though it should fail'
            elif not fails:
                yield from ((i, *d) for d in _value(field, read.column(0)[0], row['json'][field.name], row['files']))


def _must_fail(column, row):
    failing = {name for name, cell in row['files'].items() if 'error' in cell}
    json = row['json'][column]
    return f'{column}[0].bin' in failing if json == ANY else not failing.isdisjoint(_names(json))


def _names(json):
    if isinstance(json, str):
        yield json
    for child in json if isinstance(json, list) else json.values() if isinstance(json, dict) else ():
        yield from _names(child)


def _value(field, scalar, expected, files):
    if expected == ANY:
        return
    blob = (field.metadata or {}).get(b'lance-encoding:blob') or getattr(field.type, 'extension_name', '') == 'lance.blob.v2' \
        or _metadata_says_blob(field)
    if blob or not _nested(field.type):
        got = _blob(scalar, expected, files) if blob else _plain(scalar)
        if got != expected:
            yield field.name[:20], str(got)[:60], str(expected)[:60]
    elif not scalar.is_valid or expected is None:
        if scalar.is_valid or expected is not None:
            yield field.name[:20], 'null', scalar.as_py(), expected
    elif pa.types.is_struct(field.type):
        for child in field.type:
            yield from _value(child, scalar[child.name], expected[child.name], files)
    elif len(scalar) != len(expected):
        yield field.name[:20], 'length', len(scalar), len(expected)
    elif pa.types.is_map(field.type):
        if [{'key': _plain(e['key']), 'value': _plain(e['value'])} for e in scalar.values] != expected:
            yield field.name[:20], 'map', scalar, expected
    else:
        for item, wanted in zip(scalar.values, expected):
            yield from _value(field.type.value_field, item, wanted, files)


def _metadata_says_blob(field):
    return (field.metadata or {}).get(b'ARROW:extension:name') == b'lance.blob.v2'


def _nested(type_):
    t = pa.types
    return any(test(type_) for test in (t.is_list, t.is_large_list, t.is_fixed_size_list, t.is_struct, t.is_map))


def _blob(scalar, expected, files):
    """Return `expected` if the bytes are those of the file it names."""
    content = scalar.as_py()
    if content is None:
        return None
    cell = files.get(expected, {})
    same = (cell.get('size'), cell.get('sha256')) == (len(content), hashlib.sha256(content).hexdigest())
    return expected if same else f'{len(content)} bytes, not {cell}'


def _plain(scalar):
    """Return the JSON form of a scalar, by Arrow's own casts to text where it has them."""
    type_, t = scalar.type, pa.types
    if not scalar.is_valid:
        return None
    if t.is_dictionary(type_):
        return _plain(scalar.dictionary[scalar.index.as_py()])
    if _nested(type_):
        if t.is_struct(type_):
            return {name: _plain(scalar[name]) for name in scalar}
        if t.is_map(type_):
            return [{'key': _plain(e['key']), 'value': _plain(e['value'])} for e in scalar.values]
        return [_plain(item) for item in scalar.values]
    if t.is_floating(type_):
        value = float(scalar.as_py())
        return value if math.isfinite(value) else 'NaN' if math.isnan(value) else 'Infinity' if value > 0 else '-Infinity'
    if t.is_binary(type_) or t.is_large_binary(type_) or t.is_fixed_size_binary(type_) or t.is_binary_view(type_):
        return base64.b64encode(scalar.as_py()).decode()
    if t.is_date(type_) or t.is_time(type_) or t.is_timestamp(type_) or t.is_decimal(type_):
        return _text(scalar)
    return scalar.as_py()


def _text(scalar):
    text = str(scalar.cast(pa.string()).as_py())
    if pa.types.is_decimal(scalar.type):
        return f'{scalar.as_py():f}'
    if pa.types.is_timestamp(scalar.type):
        text = text.replace(' ', 'T')
        if len(text) > 5 and text[-5] in '+-' and scalar.type.tz:
            text = text[:-2] + ':' + text[-2:]
    return _shortened(text)


def _shortened(text):
    """Leave out a fraction of zeros, three digits at a time."""
    head, dot, rest = text.partition('.')
    if not dot:
        return text
    digits = ''.join(c for c in rest if c.isdigit()) if 'Z' in rest or rest.isdigit() else rest[:len(rest) - 6]
    tail = rest[len(digits):]
    while digits.endswith('000'):
        digits = digits[:-3]
    return head + (dot + digits if digits else '') + tail
