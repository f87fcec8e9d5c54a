"""Where tables are written: a folder, or a prefix in an S3 bucket."""
import os
import shutil
from urllib.parse import quote, urlsplit

import lance

from cells import External, table

DEFAULT_VERSION = '2.2'


class Output:
    """A destination and the storage options that reach it."""

    def __init__(self, root: str, options: dict, external_dir=None):
        self.remote = '://' in root
        self.root = root.rstrip('/') if self.remote else os.path.abspath(root)
        self.options = options or None
        self.external = os.path.abspath(external_dir) if external_dir else None
        if not self.remote:
            os.makedirs(self.root, exist_ok=True)

    # -- tables ----------------------------------------------------------------------------------------------

    def uri(self, name: str) -> str:
        return f'{self.root}/{name}.lance'

    def create(self, name, fields, rows, metadata=None, **options):
        """Write a new table in the place of whatever an earlier run left there, so that versions start at 1."""
        self.remove(self.uri(name))
        return self.write(name, fields, rows, 'create', metadata, **options)

    def append(self, name, fields, rows, **options):
        return self.write(name, fields, rows, 'append', **options)

    def write(self, name, fields, rows, mode, metadata=None, **options):
        options = {'data_storage_version': DEFAULT_VERSION} | options
        return lance.write_dataset(table(fields, rows, metadata), self.uri(name), mode=mode, storage_options=self.options, **options)

    def open(self, name, version=None):
        return lance.dataset(self.uri(name), version=version, storage_options=self.options)

    # -- folders and objects beside the tables ---------------------------------------------------------------

    def local(self, uri: str) -> str:
        """Return the path of a local table or file, for tables that are damaged on purpose."""
        assert not self.remote, 'only a local table can be damaged'
        return urlsplit(uri).path if '://' in uri else uri

    def remove(self, uri: str):
        if not self.remote:
            shutil.rmtree(uri.removeprefix('file://'), ignore_errors=True)
            return
        try:
            self._s3().delete_dir(uri.split('://')[1])
        except FileNotFoundError:
            pass

    def fresh_base(self, name: str) -> str:
        """Return the URI of an empty folder for a second base."""
        uri = f'{self.root}/_base_{name}'
        self.remove(uri)
        if self.remote:
            return uri
        os.makedirs(uri)
        return 'file://' + uri

    def external_base(self) -> str:
        if self.external:
            return 'file://' + self.external
        return f'{self.root}/_external' if self.remote else f'file://{self.root}/_external'

    def put_external(self, path: str, content: bytes) -> str:
        """Store an External target and return its URI."""
        self.put(f'{self.external_base()}/{path}', content)
        return self.external_uri(path)

    def external_uri(self, path: str) -> str:
        return f'{self.external_base()}/{quote(path)}'

    def put(self, uri: str, content: bytes):
        """Store an object at a file or S3 URI, or at a path."""
        if uri.startswith('s3://'):
            with self._s3().open_output_stream(uri.split('://')[1]) as stream:
                stream.write(content)
            return
        file = uri.removeprefix('file://')
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with open(file, 'wb') as stream:
            stream.write(content)

    def reference(self, path, content, position=None, size=None) -> External:
        """Return a reference to an External target; `content` None means that the target is missing."""
        uri = self.external_uri(path)
        shown = content if content is None or position is None else content[position:position + size]
        return External(uri, shown, position, size, self.is_outside(uri))

    def is_outside(self, uri: str) -> bool:
        """Whether `uri` needs the policy: it is a local file, or in another bucket than the tables."""
        here, there = urlsplit(self.root if self.remote else 'file://' + self.root), urlsplit(uri)
        return there.scheme.startswith('file') or (here.scheme, here.netloc) != (there.scheme, there.netloc)

    def _s3(self):
        import pyarrow.fs as fs
        options = self.options or {}
        scheme, host = options['aws_endpoint'].split('://')
        return fs.S3FileSystem(access_key=options.get('aws_access_key_id'), secret_key=options.get('aws_secret_access_key'),
                               region=options.get('aws_region', 'us-east-1'), endpoint_override=host, scheme=scheme)
