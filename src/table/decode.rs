//! Columns, decoded for nothing but to see whether they can be.

use lance_core::datatypes::Schema;

use super::scan::{LARGEST, Run};
use super::snapshot::Snapshot;
use crate::error::Result;

/// Rows that are decoded at once: columns may be wide.
const ROWS: u64 = 512;

impl Snapshot {
    /// The names of the columns.
    pub fn column_names(&self) -> Vec<String> {
        self.dataset.schema().fields.iter().map(|field| field.name.clone()).collect()
    }

    /// Decodes a column of a fragment, both by position; Blobs as descriptors.
    ///
    /// # Errors
    /// Whatever the first rows give that cannot be read.
    pub async fn decode(&self, fragment: usize, column: usize) -> Result<()> {
        let projection: Vec<Schema> = self.column(column).cloned().into_iter().collect();
        let live = self.rows.live(fragment);
        let mut offset = 0;
        while offset < live {
            let run = Run { fragment, offset, rows: ROWS.min(live - offset) };
            let scanned = self.scan_run(&projection, run, LARGEST).await?;
            offset += scanned.rows();
            for array in scanned.columns {
                array?;
            }
        }
        Ok(())
    }
}
