"""Blobs in lists and structs, with null and empty at every level."""
import pyarrow as pa
from lance import blob_field

from payloads import KIB, payload, payloads
from registry import builds
from tables_values import ID, MANAGED, written

ITEM = blob_field('item', dedicated_size_threshold=256 * KIB)
CLIP = pa.struct([blob_field('clip'), pa.field('note', pa.string())])


def numbered(columns: dict) -> list:
    """Turn {column: [value per row]} into rows with an id."""
    count = max(map(len, columns.values()))
    return [{'id': i} | {name: values[i] if i < len(values) else None for name, values in columns.items()} for i in range(count)]


@builds('list')
def lists(output, _):
    p = payloads('list', [10, 200_000, 0, 300_000, 70_000, 1, 12])
    values = [[p[0], p[1]], [], None, [None], [p[2], p[3]], [p[4], None, p[5]], [p[6], p[6]], [None, None, None, p[0]]]
    return written(output, 'list', 'list<blob> and large_list<blob>: empty and null lists, null and empty items, every kind',
                   [ID, pa.field('frames', pa.list_(ITEM)), pa.field('large', pa.large_list(ITEM))],
                   numbered({'frames': values, 'large': values[::-1]}))


@builds('struct')
def structs(output, _):
    p = payloads('struct', [1, 100_000, 300_000, 5, 50_000, 150_000])
    info = pa.struct([pa.field('file name', pa.string()), blob_field('thumb', dedicated_size_threshold=256 * KIB), pa.field('width', pa.int32())])
    def one(thumb, name='f'):
        return {'file name': name, 'thumb': thumb, 'width': 640}
    values = [one(p[0]), one(p[1]), one(None), one(b''), one(p[2], None), None, {'file name': None, 'thumb': None, 'width': None}]
    pages = [[one(p[3]), one(b'')], [], [one(p[4]), one(p[5]), one(None)], None, [None, one(p[0])], [one(None)], []]
    return written(output, 'struct', 'struct<blob> and list<struct<…, blob>>: null struct, null blob, empty blob',
                   [ID, pa.field('info', info), pa.field('pages', pa.list_(pa.field('item', info)))],
                   numbered({'info': values, 'pages': pages}))


@builds('nested')
def nested(output, _):
    return _nested(output, 'nested', None)


@builds('nested_managed')
def nested_managed(output, _):
    return _nested(output, 'nested_managed', MANAGED)


def _nested(output, name, metadata):
    p = payloads(name, [3, 70_000, 66_000, 12, 0, 90_000])
    lists_of_lists = [[[p[0], p[1]], []], [], None, [None, [None], [p[4]]], [[], [p[2], None, p[3]]], [[None, None]]]

    def clip(value, note='n'):
        return {'clip': value, 'note': note}
    scenes = [[clip(p[5]), clip(None)], None, [], [None], [clip(b'', None), None, clip(p[0])]]

    inner = pa.struct([blob_field('raw'), pa.field('at', pa.int32())])
    album = pa.struct([pa.field('title', pa.string()), pa.field('tracks', pa.list_(pa.field('item', inner)))])
    def track(value, at=1):
        return {'raw': value, 'at': at}
    albums = [{'title': 'a', 'tracks': [track(p[1]), None, track(None), track(b'')]}, None, {'title': None, 'tracks': None},
              {'title': 'd', 'tracks': []}, {'title': 'e', 'tracks': [track(p[3], None)]}]

    outer = pa.struct([pa.field('in', pa.struct([blob_field('blob'), pa.field('n', pa.int8())])), blob_field('beside')])
    deep = [{'in': {'blob': p[2], 'n': 1}, 'beside': p[0]}, {'in': None, 'beside': None}, None, {'in': {'blob': None, 'n': None}, 'beside': b''},
            {'in': {'blob': b'', 'n': 2}, 'beside': None}]
    structs_of_lists = pa.list_(pa.field('item', pa.list_(pa.field('item', CLIP))))
    grid = [[[clip(p[0]), None], None, []], None, [], [[clip(b'')]], [[clip(None)]]]
    fields = [ID, pa.field('ll', pa.list_(pa.field('item', pa.list_(ITEM)))),
              pa.field('large_ll', pa.large_list(pa.field('item', pa.large_list(ITEM)))),
              pa.field('scenes', pa.large_list(pa.field('item', CLIP))), pa.field('album', album), pa.field('deep', outer),
              pa.field('grid', structs_of_lists)]
    rows = numbered({'ll': lists_of_lists, 'large_ll': lists_of_lists[::-1], 'scenes': scenes, 'album': albums, 'deep': deep, 'grid': grid})
    return written(output, name, 'list<list>, large_list<large_list>, large_list<struct>, struct<list<struct>>, struct<struct>, list<list<struct>>',
                   fields, rows, metadata)


@builds('wide_list')
def wide_list(output, _):
    """A list long enough that its element files do not fit one directory read."""
    rows = [{'id': 0, 'frames': [payload(f'wide_list/{i}', i % 7) if i % 5 else None for i in range(1500)]}, {'id': 1, 'frames': []}]
    return written(output, 'wide_list', 'one list of 1500 elements, every fifth null', [ID, pa.field('frames', pa.list_(ITEM))], rows)
