"""Every Arrow type that pylance writes, with its JSON in row.json written out by hand."""
import math
from decimal import Decimal

import pyarrow as pa
from lance import blob_field

from cells import ANY, Shown
from registry import builds
from tables_values import ID, written

SECONDS, NANOS = 1_704_164_645, 678_901_234
"""2024-01-02T03:04:05 UTC and its fraction; 04:04:05 in Berlin, 08:34:05 at +05:30."""
DAY = '2024-01-02'
FRACTION = {'s': '', 'ms': '.678', 'us': '.678901', 'ns': '.678901234'}
PER_SECOND = {'s': 1, 'ms': 10**3, 'us': 10**6, 'ns': 10**9}
I64 = 2**63


def ints(bits, signed):
    low, high = (-2**(bits - 1), 2**(bits - 1) - 1) if signed else (0, 2**bits - 1)
    return [low, high, 7]


def ticks(unit):
    return SECONDS * PER_SECOND[unit] + NANOS * PER_SECOND[unit] // 10**9


def simple_columns():
    """(name, type, values); a value that is its own JSON stands alone."""
    for bits in (8, 16, 32, 64):
        yield f'int{bits}', getattr(pa, f'int{bits}')(), ints(bits, True)
        yield f'uint{bits}', getattr(pa, f'uint{bits}')(), ints(bits, False)
    not_finite = [Shown(math.nan, 'NaN'), Shown(math.inf, 'Infinity'), Shown(-math.inf, '-Infinity')]
    yield 'float16', pa.float16(), [1.5, -0.0, *not_finite]
    yield 'float32', pa.float32(), [-0.15625, -0.0, *not_finite]
    yield 'float64', pa.float64(), [0.1, -0.0, *not_finite, 5e-324, 1.7976931348623157e308]
    yield 'bool', pa.bool_(), [True, False]
    texts = ['', 'plain', 'ünï 日本 🙂', 'quote " back \\ slash / line\nbreak \t nul \0', 'e\u0301', '{"not": "json"}']
    for name, type_ in [('utf8', pa.utf8()), ('large_utf8', pa.large_utf8()), ('utf8_view', pa.string_view())]:
        yield name, type_, texts
    octets = [Shown(b'', ''), Shown(b'\0\xff\xfe', 'AP/+'), Shown(b'a', 'YQ=='), Shown(b'{}', 'e30=')]
    for name, type_ in [('binary', pa.binary()), ('large_binary', pa.large_binary()), ('binary_view', pa.binary_view())]:
        yield name, type_, octets
    yield 'binary3', pa.binary(3), [Shown(b'\0\xff\xfe', 'AP/+')]
    yield 'none', pa.null(), []
    yield 'dictionary_text', pa.dictionary(pa.int32(), pa.utf8()), ['x', 'y', 'x']
    yield 'dictionary_number', pa.dictionary(pa.int8(), pa.int64()), [5, 6, 5]
    yield 'dictionary_binary', pa.dictionary(pa.uint16(), pa.binary()), [Shown(b'a', 'YQ==')]
    yield 'decimal128', pa.decimal128(10, 2), [Shown(Decimal(d), d) for d in ('1.50', '-0.01', '99999999.99', '0.00')]
    yield 'decimal256', pa.decimal256(60, 4), [Shown(Decimal(d), d) for d in ('123456789012345678901234567890.1250', '-1.0000')]
    yield 'decimal_scale0', pa.decimal128(38, 0), [Shown(Decimal(d), d) for d in ('99999999999999999999999999999999999999', '-7')]
    yield 'decimal_negative_scale', pa.decimal128(10, -2), [Shown(Decimal('1E+2'), ANY)]


def time_columns():
    epoch = '1970-01-01'
    yield 'date32', pa.date32(), [Shown(19_724, DAY), Shown(0, epoch), Shown(-1, '1969-12-31'), Shown(-719_162, '0001-01-01'), Shown(2**31 - 1, ANY)]
    yield 'date64', pa.date64(), [Shown(19_724 * 86_400_000, DAY), Shown(0, epoch), Shown(-86_400_000, '1969-12-31')]
    for bits, units in ((32, ('s', 'ms')), (64, ('us', 'ns'))):
        for unit in units:
            clock = [Shown(ticks(unit) - 19_724 * 86_400 * PER_SECOND[unit], '03:04:05' + FRACTION[unit]), Shown(0, '00:00:00')]
            yield f'time{bits}_{unit}', getattr(pa, f'time{bits}')(unit), clock
    for unit, fraction in FRACTION.items():
        for zone, (label, at, zero) in {None: ('', f'{DAY}T03:04:05{fraction}', f'{epoch}T00:00:00'),
                                        'UTC': ('_utc', f'{DAY}T03:04:05{fraction}Z', f'{epoch}T00:00:00Z'),
                                        '+05:30': ('_offset', f'{DAY}T08:34:05{fraction}+05:30', f'{epoch}T05:30:00+05:30'),
                                        'Europe/Berlin': ('_berlin', f'{DAY}T04:04:05{fraction}+01:00', f'{epoch}T01:00:00+01:00')}.items():
            before = Shown(-PER_SECOND[unit], '1969-12-31T23:59:59' + ('Z' if zone else '')) if zone in (None, 'UTC') else None
            yield f'timestamp_{unit}{label}', pa.timestamp(unit, zone), [Shown(ticks(unit), at), Shown(0, zero), before, Shown(I64 - 1, ANY), Shown(-I64, ANY)]
        yield f'duration_{unit}', pa.duration(unit), [Shown(n, ANY) for n in (0, 5, -90_000 * PER_SECOND[unit], I64 - 1)]


def container_columns():
    yield 'vector', pa.list_(pa.float32(), 3), [[0.5, -1.25, 2.0], [0.0, 0.0, 0.0]]
    yield 'vector16', pa.list_(pa.float16(), 2), [[0.5, -1.25]]
    yield 'vector_u8', pa.list_(pa.uint8(), 4), [[0, 1, 254, 255]]
    yield 'vector_bool', pa.list_(pa.bool_(), 2), [[True, False]]
    yield 'vector_of_vectors', pa.list_(pa.list_(pa.float32(), 2), 2), [[[0.5, 1.5], [2.5, 3.5]]]
    yield 'ints', pa.list_(pa.int32()), [[1, None, 3], [], [None]]
    yield 'texts', pa.large_list(pa.utf8()), [['a', '', None], []]
    yield 'lists', pa.list_(pa.list_(pa.int64())), [[[1], [], None], []]
    yield 'days', pa.list_(pa.date32()), [Shown([19_724, None], [DAY, None])]
    yield 'octets', pa.list_(pa.binary()), [Shown([b'a', None], ['YQ==', None])]
    point = pa.struct([pa.field('x', pa.float64()), pa.field('tags', pa.list_(pa.utf8())), pa.field('in', pa.struct([pa.field('y', pa.int8())]))])
    yield 'point', point, [{'x': 1.5, 'tags': ['a', None], 'in': {'y': 1}}, {'x': None, 'tags': None, 'in': None}, {'x': -0.5, 'tags': [], 'in': {'y': None}}]
    yield 'points', pa.list_(point), [[{'x': 1.5, 'tags': [], 'in': {'y': 1}}, None], []]
    yield 'map', pa.map_(pa.utf8(), pa.int32()), [Shown([('k', 1), ('z', None)], [{'key': 'k', 'value': 1}, {'key': 'z', 'value': None}]), Shown([], [])]
    yield 'map_of_lists', pa.map_(pa.int64(), pa.list_(pa.int32())), [Shown([(7, [1, 2])], [{'key': 7, 'value': [1, 2]}])]


def _build(output, name, notes, columns):
    columns = list(columns)
    count = 1 + max(len(values) for _, _, values in columns)
    rows = [{'id': i, 'blob': b'%d' % i} | {column: values[i] for column, _, values in columns if i < len(values)} for i in range(count)]
    fields = [ID] + [pa.field(column, type_) for column, type_, _ in columns] + [blob_field('blob')]
    return written(output, name, notes, fields, rows)


@builds('types')
def types(output, _):
    return _build(output, 'types', 'numbers, text, binary, dictionary and decimal columns; the last row is null', simple_columns())


@builds('types_time')
def types_time(output, _):
    return _build(output, 'types_time', 'dates, times, timestamps with and without zone, durations, and their extremes', time_columns())


@builds('types_containers')
def types_containers(output, _):
    return _build(output, 'types_containers', 'vectors, lists, structs and maps without blobs', container_columns())


@builds('types_fixed_structs')
def types_fixed_structs(output, _):
    """The 14.0.2 reader takes this column for one of twice the length, and reads it alone but not beside others."""
    columns = [('text', pa.utf8(), ['a', 'b']), ('fixed_structs', pa.list_(pa.struct([pa.field('x', pa.int32())]), 2), [[{'x': 1}, {'x': 2}]])]
    return _build(output, 'types_fixed_structs', 'fixed_size_list<struct>: each column reads alone, a scan of them together fails', columns)


@builds('types_extensions')
def types_extensions(output, _):
    columns = [('json', pa.json_(), [Shown('{"a": [1, null]}', ANY)]), ('uuid', pa.uuid(), [Shown(bytes(range(16)), ANY)]),
               ('bool8', pa.bool8(), [Shown(1, ANY)])]
    return _build(output, 'types_extensions', 'Arrow extension types: any JSON will do, but the row must show', columns)
