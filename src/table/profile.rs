//! The keys of an AWS profile, read again when somebody has written them anew.
//!
//! The crate asks the usual chain of sources once, and again only when what it got has a time of
//! expiry (lance 14.0.2, `LI:object_store/providers/aws.rs:522`). Keys in a file have none: a mount
//! would keep a session's keys for its whole life, which is longer than theirs. So the chain is made
//! anew when a file of profiles has changed; instance, container and web identity say by themselves
//! how long their keys live.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use lance_io::object_store::providers::aws::build_aws_credential;
use object_store::aws::{AwsCredential, AwsCredentialProvider};
use object_store::{CredentialProvider, Error};
use tokio::sync::Mutex;

/// How often the files are looked at.
const PERIOD: Duration = Duration::from_secs(5);
/// How long before their end keys are asked for again, where they have one.
const EARLY: Duration = Duration::from_mins(1);
/// What is asked for is a region as well, which nobody looks at here.
const NO_REGION: &str = "us-east-1";
/// Options that say where keys come from, or that the crate takes no keys from others with.
const SAYING: [&str; 6] = [
    "aws_access_key_id",
    "access_key_id",
    "aws_skip_signature",
    "skip_signature",
    "aws_provider_scheme",
    "use_opendal",
];

/// The usual chain, as the files of profiles are now.
#[derive(Debug)]
pub struct Profile {
    files: Vec<PathBuf>,
    known: Mutex<Option<Known>>,
}

#[derive(Debug)]
struct Known {
    looked: Instant,
    written: Vec<Option<SystemTime>>,
    keys: AwsCredentialProvider,
}

impl Profile {
    /// The chain, if its keys may come from a file: where neither an option nor the environment
    /// says otherwise, and there is such a file.
    pub fn find<'a>(
        mut options: impl Iterator<Item = &'a String>,
        environment: impl Fn(&str) -> Option<OsString>,
    ) -> Option<AwsCredentialProvider> {
        // Those of one base of the table are written `base_<n>.<option>`.
        let says = |key: &String| key.rsplit('.').next().is_some_and(|key| SAYING.contains(&key));
        let is_said = environment("AWS_ACCESS_KEY_ID").is_some() || options.any(says);
        let home = environment("HOME").map(PathBuf::from);
        let place = |variable, name: &str| {
            let named = environment(variable).map(PathBuf::from);
            named.or_else(|| Some(home.as_ref()?.join(".aws").join(name)))
        };
        let files = [
            place("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
            place("AWS_CONFIG_FILE", "config"),
        ];
        // The daemon leaves the folder that others start from.
        let files = files.into_iter().flatten().filter(|path| path.is_absolute());
        let files: Vec<PathBuf> = files.collect();
        let is_there = !is_said && files.iter().any(|path| path.exists());
        if !is_there {
            return None;
        }
        Some(Arc::new(Self { files, known: Mutex::new(None) }))
    }

    fn written(&self) -> Vec<Option<SystemTime>> {
        let time = |path| std::fs::metadata(path).and_then(|meta| meta.modified()).ok();
        self.files.iter().map(time).collect()
    }
}

#[async_trait]
impl CredentialProvider for Profile {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let mut known = self.known.lock().await;
        let keys = match &mut *known {
            Some(known) if known.looked.elapsed() < PERIOD => known.keys.clone(),
            _ => {
                let written = self.written();
                let unchanged = known.take().filter(|known| known.written == written);
                let keys = match unchanged {
                    Some(known) => known.keys,
                    None => chain().await?,
                };
                *known = Some(Known { looked: Instant::now(), written, keys: keys.clone() });
                keys
            }
        };
        drop(known);
        keys.get_credential().await
    }
}

async fn chain() -> object_store::Result<AwsCredentialProvider> {
    let built = build_aws_credential(EARLY, None, None, Some(NO_REGION.to_owned()), None, None);
    let failed = |e| Error::Generic { store: "AWS profile", source: Box::new(e) };
    Ok(built.await.map_err(failed)?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_asked_where_nothing_else_says_where_keys_are() {
        let home = tempfile::tempdir().unwrap();
        let is_asked = |option: &str, variable: &str| {
            let environment = |name: &str| match name {
                "HOME" => Some(home.path().into()),
                _ => (name == variable).then(|| "x".into()),
            };
            Profile::find([option.to_owned()].iter(), environment).is_some()
        };
        assert!(!is_asked("aws_region", ""), "there is no file");
        std::fs::create_dir(home.path().join(".aws")).unwrap();
        std::fs::write(home.path().join(".aws/config"), "").unwrap();
        assert!(is_asked("aws_region", ""));
        assert!(!is_asked("aws_region", "AWS_ACCESS_KEY_ID"));
        for option in SAYING {
            assert!(!is_asked(option, ""), "{option}");
            assert!(!is_asked(&format!("base_1.{option}"), ""), "{option}");
        }
    }
}
