//! The S3 operations: some of our own, the rest the library's.

use std::path::PathBuf;

use bytes::Bytes;
use futures::TryStreamExt as _;
use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result, s3_error};

use super::faults::Half;
use super::listing::{self, Pages};
use super::objects::{Object, Objects};

/// The most keys of one page, as S3 has it.
const PAGE: i32 = 1000;

pub struct Service {
    library: s3s_fs::FileSystem,
    objects: Objects,
    pages: Pages,
}

impl Service {
    pub fn new(root: PathBuf) -> Self {
        let library = s3s_fs::FileSystem::new(&root).expect("FOLDER can be read");
        Self { library, objects: Objects::new(root), pages: Pages::default() }
    }
}

/// Encoding-type `url`: everything but unreserved characters and `/`.
fn url_encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/*".contains(&byte);
    let encode = |byte: u8| {
        if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    text.bytes().map(encode).collect()
}

fn check(matching: &Option<IfMatch>, other: &Option<IfNoneMatch>, tag: &str) -> S3Result<()> {
    let tag = ETag::Strong(tag.to_owned());
    if let Some(wanted) = matching.as_ref().and_then(IfMatch::as_etag)
        && !wanted.strong_cmp(&tag)
    {
        return Err(s3_error!(PreconditionFailed));
    }
    if let Some(other) = other
        && (other.is_any() || other.as_etag().is_some_and(|other| other.weak_cmp(&tag)))
    {
        return Err(s3_error!(NotModified));
    }
    Ok(())
}

/// A range of a file, as a piece of memory that the kernel fills.
fn map(object: &Object, range: &std::ops::Range<u64>) -> S3Result<Bytes> {
    if range.is_empty() {
        return Ok(Bytes::new());
    }
    let file = std::fs::File::open(&object.path).map_err(|_| s3_error!(NoSuchKey))?;
    let length = usize::try_from(range.end - range.start).map_err(|_| s3_error!(InvalidRange))?;
    let mut options = memmap2::MmapOptions::new();
    // SAFETY: objects are replaced by rename, never rewritten in place, so the map stays valid.
    let map = unsafe { options.offset(range.start).len(length).map(&file) };
    Ok(Bytes::from_owner(map.map_err(|_| s3_error!(InternalError))?))
}

/// The first half of a body.
async fn half(body: Option<StreamingBlob>) -> S3Result<Option<StreamingBlob>> {
    let Some(body) = body else { return Ok(None) };
    let pieces: Vec<Bytes> = body.try_collect().await.map_err(|_| s3_error!(IncompleteBody))?;
    let whole = pieces.concat();
    let half = Bytes::copy_from_slice(&whole[..whole.len() / 2]);
    Ok(Some(StreamingBlob::wrap(futures::stream::iter([Ok::<_, std::io::Error>(half)]))))
}

#[async_trait::async_trait]
impl S3 for Service {
    async fn get_object(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let input = request.input;
        let object = self.objects.find(&input.bucket, &input.key)?;
        check(&input.if_match, &input.if_none_match, &object.tag)?;
        let range = match &input.range {
            Some(range) => range.check(object.length)?,
            None => 0..object.length,
        };
        let body = map(&object, &range)?;
        let content_range = input.range.is_some().then(|| {
            format!("bytes {}-{}/{}", range.start, range.end.max(1) - 1, object.length)
        });
        let length = i64::try_from(body.len()).ok();
        let pieces = (!body.is_empty()).then_some(Ok::<_, std::io::Error>(body));
        Ok(S3Response::new(GetObjectOutput {
            body: Some(StreamingBlob::wrap(futures::stream::iter(pieces))),
            content_length: length,
            content_range,
            accept_ranges: Some("bytes".into()),
            last_modified: Some(object.modified.into()),
            e_tag: Some(ETag::Strong(object.tag)),
            ..Default::default()
        }))
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let input = request.input;
        let object = self.objects.find(&input.bucket, &input.key)?;
        check(&input.if_match, &input.if_none_match, &object.tag)?;
        Ok(S3Response::new(HeadObjectOutput {
            content_length: i64::try_from(object.length).ok(),
            accept_ranges: Some("bytes".into()),
            last_modified: Some(object.modified.into()),
            e_tag: Some(ETag::Strong(object.tag)),
            ..Default::default()
        }))
    }

    async fn put_object(
        &self,
        mut request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        if request.extensions.get::<Half>().is_some() {
            request.input.body = half(request.input.body).await?;
        }
        let (bucket, key) = (request.input.bucket.clone(), request.input.key.clone());
        if self.objects.path(&bucket, &key)?.is_dir() && !key.ends_with('/') {
            return Err(s3_error!(InvalidRequest, "objects are files here: the key is a folder"));
        }
        let lock = self.objects.lock(&bucket, &key);
        let _one_at_a_time = lock.lock().await;
        let result = self.library.put_object(request).await;
        self.objects.forget(&bucket, &key);
        result
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let (bucket, key) = (request.input.bucket.clone(), request.input.key.clone());
        let lock = self.objects.lock(&bucket, &key);
        let _one_at_a_time = lock.lock().await;
        let result = self.library.complete_multipart_upload(request).await;
        self.objects.forget(&bucket, &key);
        result
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let input = request.input;
        if !self.objects.root.join(&input.bucket).is_dir() {
            return Err(s3_error!(NoSuchBucket));
        }
        let prefix = input.prefix.clone().unwrap_or_default();
        let delimited = match input.delimiter.as_deref() {
            None | Some("") => false,
            Some("/") => true,
            Some(_) => return Err(s3_error!(NotImplemented, "only / as delimiter")),
        };
        let most = usize::try_from(input.max_keys.unwrap_or(PAGE).clamp(0, PAGE)).unwrap_or(0);
        let page = match input.continuation_token.as_deref() {
            Some(token) => self
                .pages
                .go_on(token, most)
                .ok_or_else(|| s3_error!(InvalidArgument, "unknown continuation token"))?,
            None => {
                let all = listing::list(&self.objects, &input.bucket, &prefix, delimited);
                self.pages.begin(all, input.start_after.as_deref(), most)
            }
        };
        let by_url = input.encoding_type.as_ref().is_some_and(|kind| kind.as_str() == "url");
        let encode = |text: &str| if by_url { url_encoded(text) } else { text.to_owned() };
        let (mut contents, mut common) = (Vec::new(), Vec::new());
        for entry in &page.entries[page.start..page.end] {
            let name = Some(encode(&entry.name));
            match &entry.object {
                None => common.push(CommonPrefix { prefix: name }),
                Some((length, modified, tag)) => contents.push(s3s::dto::Object {
                    key: name,
                    size: i64::try_from(*length).ok(),
                    last_modified: Some((*modified).into()),
                    e_tag: Some(ETag::Strong(tag.clone())),
                    storage_class: Some(ObjectStorageClass::from_static(
                        ObjectStorageClass::STANDARD,
                    )),
                    ..Default::default()
                }),
            }
        }
        Ok(S3Response::new(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(encode(&prefix)),
            delimiter: input.delimiter,
            max_keys: i32::try_from(most).ok(),
            key_count: i32::try_from(page.end - page.start).ok(),
            is_truncated: Some(page.token.is_some()),
            next_continuation_token: page.token,
            continuation_token: input.continuation_token,
            start_after: input.start_after,
            encoding_type: input.encoding_type,
            contents: Some(contents),
            common_prefixes: Some(common),
            ..Default::default()
        }))
    }

    async fn list_objects(
        &self,
        request: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        let marker = request.input.marker.clone();
        let mut request = request.map_input(|input| {
            let input: ListObjectsV2Input = input.into();
            ListObjectsV2Input { continuation_token: None, ..input }
        });
        request.input.start_after = marker.clone();
        let response = self.list_objects_v2(request).await?;
        Ok(response.map_output(|page| {
            let keys = page.contents.iter().flatten().filter_map(|object| object.key.clone());
            let prefixes =
                page.common_prefixes.iter().flatten().filter_map(|common| common.prefix.clone());
            let last = keys.chain(prefixes).max();
            ListObjectsOutput {
                next_marker: page.is_truncated.unwrap_or(false).then_some(last).flatten(),
                marker,
                contents: page.contents,
                common_prefixes: page.common_prefixes,
                delimiter: page.delimiter,
                encoding_type: page.encoding_type,
                name: page.name,
                prefix: page.prefix,
                max_keys: page.max_keys,
                is_truncated: page.is_truncated,
                ..Default::default()
            }
        }))
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let (bucket, key) = (&request.input.bucket, &request.input.key);
        if self.objects.find(bucket, key).is_err() && !key.ends_with('/') {
            return Ok(S3Response::new(DeleteObjectOutput::default()));
        }
        self.library.delete_object(request).await
    }

    async fn create_bucket(
        &self,
        request: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        self.library.create_bucket(request).await
    }

    async fn delete_bucket(
        &self,
        request: S3Request<DeleteBucketInput>,
    ) -> S3Result<S3Response<DeleteBucketOutput>> {
        self.library.delete_bucket(request).await
    }

    async fn head_bucket(
        &self,
        request: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        self.library.head_bucket(request).await
    }

    async fn list_buckets(
        &self,
        request: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        self.library.list_buckets(request).await
    }

    async fn get_bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        self.library.get_bucket_location(request).await
    }

    async fn copy_object(
        &self,
        request: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        self.library.copy_object(request).await
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        self.library.delete_objects(request).await
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        self.library.create_multipart_upload(request).await
    }

    async fn upload_part(
        &self,
        mut request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        if request.extensions.get::<Half>().is_some() {
            request.input.body = half(request.input.body).await?;
        }
        self.library.upload_part(request).await
    }

    async fn upload_part_copy(
        &self,
        request: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        self.library.upload_part_copy(request).await
    }

    async fn list_parts(
        &self,
        request: S3Request<ListPartsInput>,
    ) -> S3Result<S3Response<ListPartsOutput>> {
        self.library.list_parts(request).await
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        self.library.abort_multipart_upload(request).await
    }
}
