//! What may help where a table's store cannot be reached.
//!
//! The crates below say what a store or a credentials service answered, and not what to do. Their
//! failures have no public types, only texts.

use super::uri::redacted;
use crate::error::{Error, Kind};

/// What failures say where nobody gave credentials: that something is missing, or where clouds tell
/// their machines who they are.
const LACKING: [&str; 5] = [
    "169.254.169.254",
    "metadata.google",
    "Azure CLI",
    "no Azure account name",
    "no storage account configured",
];

/// The failure to open a table, with its place and with what may help.
pub fn of(error: Error, table: &str) -> Error {
    let text = error.chain();
    let shown = redacted(table);
    let error = if text.contains(&shown) { error } else { error.at(&shown) };
    let is_lacking = LACKING.iter().any(|part| text.contains(part));
    let error = if is_lacking { error.of_kind(Kind::Denied) } else { error };
    match hint(&text, error.kind(), table) {
        Some(hint) => error.hint(hint),
        None => error,
    }
}

fn hint(text: &str, kind: Kind, table: &str) -> Option<&'static str> {
    if text.contains("URL scheme is not allowed") {
        return Some("an http:// endpoint needs --storage-option allow_http=true");
    }
    match kind {
        Kind::Denied => credentials(table),
        Kind::Timeout if table.contains("://") => Some(
            "is the endpoint right? without credentials a cloud's metadata service is waited for",
        ),
        _ => None,
    }
}

/// Where the credentials of a store come from.
fn credentials(table: &str) -> Option<&'static str> {
    let (scheme, _) = table.split_once("://")?;
    match scheme {
        "s3" | "s3+ddb" => Some(
            "credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile (AWS_PROFILE), the container or the instance, or --storage-option aws_access_key_id=…; a public bucket needs aws_skip_signature=true",
        ),
        "gs" => Some(
            "credentials come from GOOGLE_APPLICATION_CREDENTIALS, gcloud or the instance, or --storage-option google_service_account=<file>",
        ),
        "az" | "abfss" => Some(
            "credentials come from AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, the machine's identity, or --storage-option account_name=…",
        ),
        "hf" => Some("credentials come from HF_TOKEN, or --storage-option hf_token=…"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_has_its_remedy_and_its_place() {
        for (table, kind, text, remedy) in [
            ("s3://b/t", Kind::Denied, "403", "AWS_PROFILE"),
            ("gs://b/t", Kind::Table, "GET http://169.254.169.254/computeMetadata", "GOOGLE_APP"),
            ("az://b/t", Kind::Table, "GET http://169.254.169.254/metadata", "AZURE_STORAGE"),
            ("hf://datasets/a/b/t", Kind::Denied, "401", "HF_TOKEN"),
            ("s3://b/t", Kind::Table, "URL scheme is not allowed", "allow_http=true"),
            ("s3://b/t", Kind::Timeout, "no answer within 20s", "is the endpoint right"),
        ] {
            let told = of(Error::new(kind, text), table).to_string();
            assert!(told.contains(remedy) && told.starts_with(table), "{told}");
        }
        let other = of(Error::new(Kind::Table, "list /t: damaged"), "/t");
        assert_eq!(other.to_string(), "list /t: damaged");
    }
}
