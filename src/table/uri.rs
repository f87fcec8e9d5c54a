//! URIs as people see them.

use url::Url;

/// The scheme of Hugging Face.
pub const HUB: &str = "hf";

/// How many components of a URI's path name the store: of `hf://datasets/owner/repository/path` the
/// owner and the repository (lance 14.0.2, `LI:object_store/providers/huggingface.rs:33`).
pub fn parts_of_store(scheme: &str) -> usize {
    if scheme == HUB { 2 } else { 0 }
}

/// A URI without what may be a credential: password, query and fragment. Every message, log line
/// and status shows URIs like this.
pub fn redacted(uri: &str) -> String {
    let Ok(mut url) = Url::parse(uri) else {
        // A path, or what is no URI at all.
        return uri.split('?').next().unwrap_or_default().to_owned();
    };
    // Fails only for URLs that have no host, which have no password either.
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_credential_is_shown() {
        assert_eq!(redacted("s3://key:secret@b/k?sig=x#y"), "s3://key@b/k");
        assert_eq!(redacted("not a uri?sig=x"), "not a uri");
        assert_eq!(redacted("/plain/path"), "/plain/path");
    }
}
