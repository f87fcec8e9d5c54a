//! Objects as files: paths, `ETag`s, and one lock for each key.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use s3s::{S3Result, s3_error};

type Key = (String, String);

/// A file as an object.
pub struct Object {
    /// Where it is.
    pub path: PathBuf,
    /// Its length in bytes.
    pub length: u64,
    /// When it was written.
    pub modified: SystemTime,
    /// Its `ETag`.
    pub tag: String,
}

/// All objects.
pub struct Objects {
    /// Buckets are folders in here.
    pub root: PathBuf,
    tags: Mutex<HashMap<Key, (SystemTime, u64, String)>>,
    locks: Mutex<HashMap<Key, Arc<tokio::sync::Mutex<()>>>>,
}

impl Objects {
    pub fn new(root: PathBuf) -> Self {
        Self { root, tags: Mutex::default(), locks: Mutex::default() }
    }

    pub fn path(&self, bucket: &str, key: &str) -> S3Result<PathBuf> {
        if key.split('/').any(|part| part == "..") {
            return Err(s3_error!(InvalidArgument));
        }
        Ok(self.root.join(bucket).join(key))
    }

    pub fn find(&self, bucket: &str, key: &str) -> S3Result<Object> {
        let path = self.path(bucket, key)?;
        match std::fs::metadata(&path) {
            Ok(meta) if meta.is_file() && !key.ends_with('/') => {
                let modified = meta.modified().unwrap_or(UNIX_EPOCH);
                let tag = self.tag(bucket, key, meta.len(), modified);
                Ok(Object { path, length: meta.len(), modified, tag })
            }
            _ if !self.root.join(bucket).is_dir() => Err(s3_error!(NoSuchBucket)),
            _ => Err(s3_error!(NoSuchKey)),
        }
    }

    /// The tag that the library keeps beside an object; a file that was put there behind the
    /// server's back has a stand-in.
    pub fn tag(&self, bucket: &str, key: &str, length: u64, modified: SystemTime) -> String {
        let name = (bucket.to_owned(), key.to_owned());
        let mut tags = self.tags.lock().unwrap();
        if let Some((time, len, tag)) = tags.get(&name)
            && *time == modified
            && *len == length
        {
            return tag.clone();
        }
        let encode = |text: &str| base64_simd::URL_SAFE_NO_PAD.encode_to_string(text);
        let file = format!(".bucket-{}.object-{}.internal.json", encode(bucket), encode(key));
        let kept = std::fs::read(self.root.join(file)).ok();
        let kept = kept.and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok());
        match kept.as_ref().and_then(|kept| kept.get("e_tag")?.as_str()) {
            Some(tag) => {
                tags.insert(name, (modified, length, tag.to_owned()));
                tag.to_owned()
            }
            None => {
                let nanos = modified.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
                // 32 digits, as S3 has them: a dash and a number would tell of parts.
                format!("{nanos:016x}{length:016x}")
            }
        }
    }

    /// Says that an object was written anew.
    pub fn forget(&self, bucket: &str, key: &str) {
        self.tags.lock().unwrap().remove(&(bucket.to_owned(), key.to_owned()));
    }

    pub fn lock(&self, bucket: &str, key: &str) -> Arc<tokio::sync::Mutex<()>> {
        let name = (bucket.to_owned(), key.to_owned());
        self.locks.lock().unwrap().entry(name).or_default().clone()
    }
}
