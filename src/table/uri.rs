//! URIs as people see them.

use url::Url;

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
