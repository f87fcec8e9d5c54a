//! What is passed to the object store: flags, and a file that is read again while the mount lives.
//!
//! Credentials are rotated by writing the file anew. The crate asks for options again when those it
//! has expire ([`EXPIRES_AT_MILLIS_KEY`]), so each reading of the file is given a short life. Other
//! sources (instance, container, web identity) have expiry times of their own, or are looked at
//! again (`profile`).

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use lance_io::object_store::{
    EXPIRES_AT_MILLIS_KEY, ObjectStoreParams, REFRESH_OFFSET_MILLIS_KEY, StorageOptionsAccessor,
    StorageOptionsProvider,
};

use sha2::{Digest as _, Sha256};

#[cfg(feature = "aws")]
use super::profile::Profile;
use crate::config;
use crate::error::{IoContext as _, Kind, Result};

/// How long what the file said is used.
const LIFE: Duration = Duration::from_secs(30);
/// How long before its end it is read again.
const EARLY: Duration = Duration::from_secs(5);

/// Options of the object store. They may be secrets: never shown.
#[derive(Clone, Default)]
pub struct Storage {
    given: HashMap<String, String>,
    file: Option<PathBuf>,
    /// All of them, as they were first.
    first: HashMap<String, String>,
}

impl Storage {
    /// Options that go before those of a file of `KEY=VALUE` lines.
    ///
    /// # Errors
    /// `Kind::Invalid` where the file cannot be read or understood.
    pub fn new(given: HashMap<String, String>, file: Option<PathBuf>) -> Result<Self> {
        let whole = |path: PathBuf| {
            // The daemon leaves the folder that a path may start from.
            std::path::absolute(&path)
                .context(Kind::Invalid, || format!("options file {}", path.display()))
        };
        let given = given.into_iter().map(|(key, value)| (spelled(key), value)).collect();
        let storage = Self { given, file: file.map(whole).transpose()?, first: HashMap::new() };
        Ok(Self { first: storage.options()?, ..storage })
    }

    /// As the crate takes them.
    pub fn params(&self) -> ObjectStoreParams {
        let accessor = match &self.file {
            // With the first options: endpoint and region are taken from them alone.
            Some(_) => Some(StorageOptionsAccessor::with_initial_and_provider(
                self.first.clone(),
                Arc::new(self.clone()),
            )),
            None if self.given.is_empty() => None,
            None => Some(StorageOptionsAccessor::with_static_options(self.given.clone())),
        };
        ObjectStoreParams {
            storage_options_accessor: accessor.map(Arc::new),
            #[cfg(feature = "aws")]
            aws_credentials: Profile::find(self.first.keys(), |name| std::env::var_os(name)),
            ..Default::default()
        }
    }

    fn options(&self) -> Result<HashMap<String, String>> {
        let mut options = HashMap::new();
        if let Some(file) = &self.file {
            let read = config::storage_options_file(file)?.into_iter();
            options.extend(read.map(|(key, value)| (spelled(key), value)));
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            options.insert(EXPIRES_AT_MILLIS_KEY.to_owned(), (now + LIFE).as_millis().to_string());
            options.insert(REFRESH_OFFSET_MILLIS_KEY.to_owned(), EARLY.as_millis().to_string());
        }
        options.extend(self.given.clone());
        Ok(options)
    }
}

/// Parts of the keys of options that say who asks, and how: keys are rotated, and the store stays.
const NOT_OF_A_STORE: [&str; 9] =
    ["key", "secret", "token", "password", "credential", "sas", "expires_at", "refresh", "retry"];

/// What tells apart two stores of one name that options lead to, such as an endpoint; `base` are the
/// options of this base (`base_<id>.<key>`). The same in every mount, and no secret is in it.
pub fn told_apart(params: &ObjectStoreParams, base: Option<u32>) -> String {
    let params = params.scoped_to_base(base);
    let options = params.storage_options().into_iter().flatten();
    let mut options: Vec<String> = options
        .filter(|(key, _)| {
            let key = key.to_ascii_lowercase();
            !NOT_OF_A_STORE.iter().any(|part| key.contains(part))
        })
        .map(|(key, value)| format!("{key}={value}\n"))
        .collect();
    options.sort_unstable();
    let digest = Sha256::digest(options.concat());
    let first = digest.first_chunk().copied().unwrap_or_default();
    format!("{:016x}", u64::from_be_bytes(first))
}

/// A key as the crate looks for it when keys are rotated: as the environment's variables, in small
/// letters (lance 14.0.2, `LI:object_store/dynamic_credentials.rs:156`).
fn spelled(key: String) -> String {
    let is_variable = !key.contains(|c: char| c.is_ascii_lowercase());
    if is_variable { key.to_ascii_lowercase() } else { key }
}

#[async_trait]
impl StorageOptionsProvider for Storage {
    async fn fetch_storage_options(&self) -> lance::Result<Option<HashMap<String, String>>> {
        let options = self.options();
        // A file that is being written anew is read again at the next request.
        options.map(Some).map_err(|e| lance::Error::invalid_input(e.to_string()))
    }

    fn provider_id(&self) -> String {
        format!("{self:?}")
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Storage").field("file", &self.file).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_told_apart_by_what_leads_to_them() {
        let told = |options: &[(&str, &str)], base| {
            let options = options.iter().map(|(key, value)| ((*key).into(), (*value).into()));
            told_apart(&Storage::new(options.collect(), None).unwrap().params(), base)
        };
        let one = [("aws_endpoint", "http://a"), ("aws_secret_access_key", "x")];
        let rotated = [("aws_endpoint", "http://a"), ("aws_secret_access_key", "y")];
        let other = [("aws_endpoint", "http://b"), ("aws_secret_access_key", "x")];
        let scoped = [("aws_endpoint", "http://a"), ("base_2.aws_endpoint", "http://b")];
        assert_eq!(told(&one, None), told(&rotated, None));
        assert_ne!(told(&one, None), told(&other, None));
        assert_eq!(told(&scoped, Some(1)), told(&one, None));
        assert_eq!(told(&scoped, Some(2)), told(&other, None));
    }

    #[test]
    fn keys_are_spelled_as_the_crate_looks_for_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("options");
        std::fs::write(&file, "AWS_ACCESS_KEY_ID=Aa\nhf_token=Bb\nHF_TOKEN_x=Cc\n").unwrap();
        let given = HashMap::from([("AWS_REGION".to_owned(), "eu".to_owned())]);
        let options = Storage::new(given, Some(file)).unwrap().first;
        for (key, value) in [
            ("aws_access_key_id", "Aa"),
            ("hf_token", "Bb"),
            ("HF_TOKEN_x", "Cc"),
            ("aws_region", "eu"),
        ] {
            assert_eq!(options.get(key).map(String::as_str), Some(value), "{key}");
        }
    }
}
