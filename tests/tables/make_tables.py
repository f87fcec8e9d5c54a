#!/usr/bin/env python3
"""Write real Lance tables with the released pylance, and a manifest of what a mount of each must show.

    pip install pylance==14.0.2 pyarrow numpy
    make_tables.py --out DIR                    # the default set: DIR/<name>.lance and DIR/manifest.json
    make_tables.py --out DIR --only scalar,list # some tables; the manifest then holds these alone
    make_tables.py --out s3://bucket/prefix -o aws_endpoint=http://127.0.0.1:9002 -o allow_http=true …
    make_tables.py --out DIR --verify           # read everything back with pylance as well

Payloads, rows and the manifest are the same on every run, but for the names that Lance draws for its files.
A table that is there already is replaced.

    manifest    {"generator", "pylance", "tables": {name: TABLE}}
    TABLE       {"uri", "notes", "latest": n, "versions": {"n": VERSION},
                 "tags": {tag: {"branch": null or name, "version": n}},
                 "branches": {branch: {"latest": n, "versions": {"n": VERSION}}}}
    VERSION     {"rows": [ROW…]} of the live rows in order, or {"error": true} if it cannot be opened;
                the tables outside the default set have {"count": n} instead
    ROW         {"files": {file name: CELL}, "json": what row.json must hold}; {"any": true} stands for any JSON value
                with "unmade": true where a column cannot be read, and reading row.json must give EIO
    CELL        {"size", "sha256", "kind"}, with "policy": "outside" where only a wider External policy shows it,
                or {"error": "EIO" or "EACCES"}; "listed": false where a listing cannot know of the file
                but opening it must give that error
"""
import argparse
import json
import sys
import time

import lance

import registry
import tables_bulk, tables_damage, tables_history, tables_legacy, tables_names, tables_nested  # noqa: E401, F401
import tables_bases, tables_refs, tables_types, tables_values  # noqa: E401, F401
import verify
from store import Output

GENERATOR = 'tests/tables/make_tables.py'


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--out', metavar='DIR', help='a folder or an s3:// prefix')
    parser.add_argument('-o', action='append', default=[], metavar='KEY=VALUE', dest='options', help='a Lance storage option')
    parser.add_argument('--only', help='comma-separated table names')
    parser.add_argument('--list', action='store_true', help='print the table names and stop')
    parser.add_argument('--manifest', metavar='FILE', help='default: OUT/manifest.json, or ./manifest.json for s3')
    parser.add_argument('--external-dir', metavar='DIR', help='local folder for External targets; default: beside the tables')
    parser.add_argument('--verify', action='store_true', help='read everything back with pylance and compare')
    parser.add_argument('--rows', type=int, default=1_000_000, help='rows of `million`')
    parser.add_argument('--versions', type=int, default=10_000, help='versions of `versions_10k`')
    parser.add_argument('--big-mib', type=int, default=256, help='MiB of the value of `big`')
    arguments = parser.parse_args()
    if not arguments.list and not arguments.out:
        parser.error('--out is needed')
    return arguments


def main() -> int:
    arguments = parse_arguments()
    if arguments.list:
        for builder in registry.BUILDERS:
            print(*builder.names, '' if builder.default else '(not in the default set)')
        return 0
    output = Output(arguments.out, dict(option.split('=', 1) for option in arguments.options), arguments.external_dir)
    tables = {}
    for builder in registry.chosen(arguments.only and arguments.only.split(','), output.remote):
        start = time.time()
        records = builder.build(output, arguments)
        tables |= {name: record.entry for name, record in records.items()}
        print(f'{time.time() - start:6.2f} s  {" ".join(records)}', flush=True)
    manifest = {'generator': GENERATOR, 'pylance': lance.__version__, 'tables': tables}
    path = arguments.manifest or ('manifest.json' if output.remote else f'{output.root}/manifest.json')
    with open(path, 'w', encoding='utf-8') as stream:
        json.dump(manifest, stream, indent=1, ensure_ascii=False)
    print(f'{len(tables)} tables, manifest {path}')
    return 1 if arguments.verify and verify.differences(manifest, output.options) else 0


if __name__ == '__main__':
    sys.exit(main())
