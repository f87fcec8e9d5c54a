"""Tables that are broken on purpose, after pylance wrote them: one bad object or version must fail alone."""
import glob
import os

from lance import DatasetBasePath

from cells import Broken
from payloads import payload
from record import Record
from registry import builds
from tables_history import Story, item
from tables_values import FIELDS, MANAGED

FOOTER = 16
"""A manifest file ends in the u64 position of the message, a u32 version and `LANC`; the message has a u32 length before it."""
BASE_PATHS_TAG, UNUSED_TAG = bytes([0x92, 0x01]), bytes([0xf2, 0x1f])
"""Protobuf tags of field 18 (Manifest.base_paths) and of field 510, which no reader knows; both length-delimited."""
READER_FLAGS_TAG, UNKNOWN_FLAG = bytes([0x48]), 1 << 40


@builds('damaged', local_only=True)
def damaged(output, _):
    return _damaged(output, 'damaged', None)


@builds('damaged_managed', local_only=True)
def damaged_managed(output, _):
    return _damaged(output, 'damaged_managed', MANAGED)


def _damaged(output, name, metadata):
    """Each row is written alone, so that each out-of-line value has its own object."""
    sizes = {'whole': 70_000, 'missing': 80_000, 'short': 90_000, 'empty': 100_000, 'big missing': 300_000, 'inline': 10}
    rows = [{'id': i, 'name': state, 'blob': payload(f'{name}/{state}', size)} for i, (state, size) in enumerate(sizes.items())]
    record = Record(output.uri(name), 'objects of payloads that are missing, cut short by one byte, or emptied; their neighbours are whole')
    pattern = f'{output.local(output.uri(name))}/**/*.blob'
    for i, row in enumerate(rows):
        known = set(glob.glob(pattern, recursive=True)) if i else set()
        ds = output.append(name, FIELDS, [row]) if i else output.create(name, FIELDS, [row], metadata)
        for path in set(glob.glob(pattern, recursive=True)) - known:
            _damage(path, row['name'])
    shown = [row if row['name'] in ('whole', 'inline') else row | {'blob': Broken(None)} for row in rows]
    for version in range(1, ds.version + 1):
        record.version(output.open(name, version), shown[:version])
    return {name: record}


def _damage(path, state):
    if 'missing' in state:
        os.remove(path)
    elif state != 'whole':
        os.truncate(path, 0 if state == 'empty' else os.path.getsize(path) - 1)


@builds('unopenable', local_only=True)
def unopenable(output, _):
    """Version 2's manifest is garbage, version 3's is empty, version 4's asks for a reader feature that does not exist yet."""
    story = Story(output, 'unopenable', 'versions 2 (garbage), 3 (0 bytes) and 4 (an unknown reader feature flag) cannot be opened; 1 and 5 can')
    story.create([item('unopenable', i) for i in range(3)])
    for i in range(3, 7):
        story.append([item('unopenable', i)])
    paths = _manifests(output, 'unopenable')
    _overwrite(paths[2], payload('unopenable', 400))
    _overwrite(paths[3], b'')
    _overwrite(paths[4], _with_message(_read(paths[4]), lambda message: message + READER_FLAGS_TAG + _varint(UNKNOWN_FLAG)))
    for version in (2, 3, 4):
        story.record.unopenable(version)
    return story.records()


@builds('unknown_base', local_only=True)
def unknown_base(output, _):
    """The base that External values name by its number is taken out of the manifest."""
    name = 'unknown_base'
    content = payload(name, 100)
    output.put_external(f'{name}/a.bin', content)
    rows = [{'id': 0, 'name': 'external', 'blob': output.reference(f'{name}/a.bin', content)}, {'id': 1, 'name': 'inline', 'blob': b'inline'}]
    base = DatasetBasePath(output.external_base(), name='ext', is_dataset_root=False)
    record = Record(output.uri(name), 'a value under a base that the manifest does not hold')
    output.create(name, FIELDS, rows, initial_bases=[base])
    path = _manifests(output, name)[1]
    _overwrite(path, _with_message(_read(path), lambda message: message.replace(BASE_PATHS_TAG, UNUSED_TAG, 1)))
    ds = output.open(name)
    assert not ds._ds.base_paths(), 'the manifest still holds its base'
    rows[0]['blob'] = Broken(None)
    record.version(ds, rows)
    return {name: record}


def _manifests(output, name) -> dict:
    """Return the manifest files by version; their names are the version subtracted from the largest u64."""
    paths = glob.glob(f'{output.local(output.uri(name))}/_versions/*.manifest')
    return {2**64 - 1 - int(os.path.basename(path).removesuffix('.manifest')): path for path in paths}


def _with_message(file: bytes, change) -> bytes:
    """Return a manifest file whose protobuf message was changed."""
    position = int.from_bytes(file[-FOOTER:-FOOTER + 8], 'little')
    length = int.from_bytes(file[position:position + 4], 'little')
    message = change(file[position + 4:position + 4 + length])
    return file[:position] + len(message).to_bytes(4, 'little') + message + file[position + 4 + length:]


def _varint(number: int) -> bytes:
    octets = bytearray()
    while number > 0x7f:
        octets.append(number & 0x7f | 0x80)
        number >>= 7
    return bytes([*octets, number])


def _read(path):
    with open(path, 'rb') as stream:
        return stream.read()


def _overwrite(path, content):
    with open(path, 'wb') as stream:
        stream.write(content)
