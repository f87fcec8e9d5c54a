//! A plan in figures, for people and for programs.

use std::fmt;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

use super::{Plan, Source, Target};
use crate::table::write::Fault;
use crate::units;

/// The shortest that a fault is as JSON, in bytes.
const FAULT_MIN: usize = r#"{"place":"","field":"","text":""},"#.len();

/// How many hidden names are told.
const HIDDEN_SHOWN: usize = 20;

/// What a commit would do: the attribute `user.lancefs.plan` of a batch as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Rows that are added.
    pub rows_new: u64,
    /// Rows of which values are replaced.
    pub rows_replaced: u64,
    /// Rows that are deleted.
    pub rows_deleted: u64,
    /// Values that come from staged files, those that are adopted included.
    pub files: u64,
    /// Bytes of staged files that become objects of the table.
    pub bytes_upload: u64,
    /// Bytes that are in the table already and are adopted as they are.
    pub bytes_adopted: u64,
    /// External references.
    pub external: u64,
    /// Bytes of [`Summary::bytes_upload`] that are uploaded already.
    #[serde(default)]
    pub ready_bytes: u64,
    /// Names in the batch's directory that are hidden: they go with the batch, and become no rows. The
    /// first ones.
    #[serde(default)]
    pub hidden: Vec<String>,
    /// How many faults there are, those that did not fit included.
    #[serde(default)]
    pub faults_total: u64,
    /// What has to be put right first.
    #[serde(default)]
    pub faults: Vec<Fault>,
}

impl Plan {
    /// The plan in figures. `ready_bytes` are the bytes that are uploaded already.
    pub fn summary(&self, ready_bytes: u64) -> Summary {
        let mut summary = Summary {
            ready_bytes,
            faults_total: units::u64_of(self.faults.len()),
            faults: self.faults.clone(),
            hidden: self.hidden.iter().take(HIDDEN_SHOWN).cloned().collect(),
            ..Summary::default()
        };
        for entry in &self.entries {
            match entry.target {
                Target::New => summary.rows_new += 1,
                Target::Replace(_) => summary.rows_replaced += 1,
                Target::Delete(_) => summary.rows_deleted += 1,
            }
            for payload in &entry.payloads {
                match &payload.source {
                    Source::File { len, .. } => {
                        summary.files += 1;
                        summary.bytes_upload += len;
                    }
                    Source::Reference(reference) => {
                        summary.files += 1;
                        summary.bytes_adopted += reference.len;
                    }
                    Source::Uri { .. } => summary.external += 1,
                }
            }
        }
        summary
    }
}

impl Summary {
    /// As JSON of at most so many bytes: an attribute's value has a limit of 64 KiB. The last
    /// faults are left out if need be; [`Summary::faults_total`] counts them all.
    pub fn json(&self, max: usize) -> String {
        let render = |faults: &[Fault]| {
            let cut = Self { faults: faults.to_vec(), ..self.clone() };
            // A struct of numbers and strings always becomes JSON.
            serde_json::to_string(&cut).unwrap_or_default()
        };
        // More do not fit, so that a million faults are not rendered to find out.
        let most = self.faults.len().min(max / FAULT_MIN);
        // Rendering is monotonous in their number.
        let counts: Vec<usize> = (1..=most).collect();
        let fitting = counts.partition_point(|count| render(&self.faults[..*count]).len() <= max);
        render(&self.faults[..fitting])
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        let mut part = |count: u64, text: String| {
            if count > 0 {
                parts.push(text);
            }
        };
        let rows =
            |count: u64| if count == 1 { "1 row".to_owned() } else { format!("{count} rows") };
        part(self.rows_new, format!("add {}", rows(self.rows_new)));
        part(self.rows_replaced, format!("replace values of {}", rows(self.rows_replaced)));
        part(self.rows_deleted, format!("delete {}", rows(self.rows_deleted)));
        let (upload, ready) = (ByteSize(self.bytes_upload), ByteSize(self.ready_bytes));
        let files = if self.files == 1 { "file" } else { "files" };
        part(self.files, format!("{} {files}", self.files));
        part(self.bytes_upload, format!("{upload} to upload, {ready} of them uploaded already"));
        part(
            self.bytes_adopted,
            format!("{} adopted without a copy", ByteSize(self.bytes_adopted)),
        );
        let references = if self.external == 1 { "reference" } else { "references" };
        part(self.external, format!("{} External {references}", self.external));
        if !self.hidden.is_empty() {
            parts.push(format!("no row of what is hidden: {}", self.hidden.join(", ")));
        }
        if parts.is_empty() {
            return f.write_str("nothing to do");
        }
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_that_do_not_fit_are_counted() {
        let fault = |n: usize| Fault {
            place: format!("b/{n}"),
            field: String::new(),
            text: "wrong \"ü\"".repeat(9),
        };
        let faults: Vec<Fault> = (0..1000).map(fault).collect();
        let summary = Summary { faults_total: 1000, faults, ..Summary::default() };
        let json = summary.json(64 << 10);
        assert!(json.len() <= 64 << 10 && json.len() > 63 << 10, "{}", json.len());
        let read: Summary = serde_json::from_str(&json).unwrap();
        assert_eq!(read.faults_total, 1000);
        assert_eq!(read.faults, summary.faults[..read.faults.len()]);
        assert_eq!(serde_json::from_str::<Summary>(&summary.json(usize::MAX)).unwrap(), summary);
    }

    #[test]
    fn only_what_there_is_is_told() {
        let summary =
            Summary { rows_new: 1, files: 2, bytes_upload: 3 << 20, ..Summary::default() };
        let text = "add 1 row, 2 files, 3.0 MiB to upload, 0 B of them uploaded already";
        assert_eq!(summary.to_string(), text);
        let hidden = Summary { hidden: vec![".x".to_owned()], rows_new: 1, ..Summary::default() };
        assert_eq!(hidden.to_string(), "add 1 row, no row of what is hidden: .x");
        assert_eq!(Summary::default().to_string(), "nothing to do");
    }
}
