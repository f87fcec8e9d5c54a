//! The files of changes, and the transaction that publishes them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use arrow_array::RecordBatch;
use futures::TryStreamExt as _;
use lance::dataset::InsertBuilder;
use lance::dataset::fragment::FileFragment;
use lance::dataset::transaction::{Operation, Transaction, UpdateMode, UpdatedFragmentOffsets};
use lance_table::format::Fragment;

use super::super::super::fault;
use super::super::dictionary::Dictionaries;
use super::super::digest::{self, Expected};
use super::check::ByFragment;
use super::file::{self, ColumnFile, Pieces, Written as WrittenFile};
use super::{Changes, Job, Place, ROWS, Touched, Which, Written};
use crate::error::{Error, Kind, Result};
use crate::units;

impl Job<'_> {
    pub(super) async fn transaction(
        &self,
        changes: &Changes,
        touched: &BTreeMap<u64, Touched<'_>>,
        dictionaries: &ByFragment,
    ) -> Result<Written> {
        let mut removed_fragment_ids = Vec::new();
        let mut updated_fragments = Vec::new();
        let mut fields_modified = BTreeSet::new();
        let mut offsets = HashMap::new();
        let mut expected = Vec::new();
        for (id, touched) in touched {
            let place = self.place(*id).await?;
            let mut metadata = place.fragment.metadata().clone();
            let columns = self.columns(touched);
            if let Some(dictionaries) = dictionaries.get(id).filter(|_| !columns.is_empty()) {
                let fields = self.fields(&columns);
                let rewritten = self.rewrite(&mut metadata, &place, touched, columns, dictionaries);
                let rewritten = rewritten.await?;
                fields_modified.extend(fields.iter().filter_map(|id| u32::try_from(*id).ok()));
                expected.push(rewritten);
                offsets.insert(*id, touched.replaced.keys().copied().collect());
            }
            match self.delete(metadata, touched).await? {
                Some(fragment) => updated_fragments.push(fragment),
                None => removed_fragment_ids.push(*id),
            }
        }
        let new_fragments = self.append(&changes.appended).await?;
        expected.extend(digest::appended(&new_fragments, &changes.appended)?);
        let operation = Operation::Update {
            removed_fragment_ids,
            updated_fragments,
            new_fragments,
            fields_modified: fields_modified.into_iter().collect(),
            compacted_sstables: Vec::new(),
            fields_for_preserving_frag_bitmap: Vec::new(),
            update_mode: Some(UpdateMode::RewriteColumns),
            inserted_rows_filter: None,
            updated_fragment_offsets: Some(UpdatedFragmentOffsets(offsets)),
        };
        let transaction = Transaction::new(self.dataset.manifest.version, operation, None);
        Ok(Written { transaction, expected })
    }

    /// Writes the touched columns of a fragment. Those whose dictionary is full are in a file of their
    /// own, which is held in memory: the others need not be.
    async fn rewrite(
        &self,
        metadata: &mut Fragment,
        place: &Place,
        touched: &Touched<'_>,
        columns: BTreeSet<usize>,
        dictionaries: &Dictionaries,
    ) -> Result<Expected> {
        let is_full = |at: &usize| dictionaries.is_full(self.table.field(*at).name());
        let (whole, parts): (BTreeSet<usize>, BTreeSet<usize>) =
            columns.into_iter().partition(is_full);
        let mut digests = BTreeMap::new();
        for (columns, pieces) in [(parts, Pieces::Many), (whole, Pieces::One)] {
            if columns.is_empty() {
                continue;
            }
            let file = ColumnFile::new(self.dataset, &columns, dictionaries, pieces);
            let written = self.write(file, place, touched, &columns).await?;
            file::attach(metadata, written.file, &self.fields(&columns));
            digests.extend(columns.into_iter().zip(written.digests));
        }
        Ok(Expected { fragments: vec![metadata.clone()], columns: digests })
    }

    async fn write(
        &self,
        mut file: ColumnFile<'_>,
        place: &Place,
        touched: &Touched<'_>,
        columns: &BTreeSet<usize>,
    ) -> Result<WrittenFile> {
        let offsets = (0..place.live()).step_by(units::usize_of(ROWS));
        let runs = offsets.map(|offset| place.run(offset));
        let mut runs = self.runs(runs, touched, columns, Which::All);
        let written = async {
            while let Some(built) = runs.try_next().await? {
                if let Some(fault) = built.faults.first() {
                    let text = format!("{} {} {}", fault.place, fault.field, fault.text);
                    return Err(Error::new(Kind::Invalid, text));
                }
                file.write(built.columns, &built.offsets).await?;
            }
            Ok(())
        };
        match written.await {
            Ok(()) => file.finish(place.rows).await,
            Err(error) => {
                file.discard().await;
                Err(error)
            }
        }
    }

    /// The fragment with its deletions; `None` where no row is left.
    async fn delete(&self, metadata: Fragment, touched: &Touched<'_>) -> Result<Option<Fragment>> {
        if touched.deleted.is_empty() {
            return Ok(Some(metadata));
        }
        let what = format!("delete rows of fragment {}", metadata.id);
        let fragment = FileFragment::new(self.dataset.clone(), metadata);
        let left = fragment.extend_deletions(touched.deleted.iter().copied()).await;
        let left = left.map_err(|e| fault::of(what, e))?;
        Ok(left.map(|fragment| fragment.metadata().clone()))
    }

    async fn append(&self, batches: &[RecordBatch]) -> Result<Vec<Fragment>> {
        if batches.iter().all(|batch| batch.num_rows() == 0) {
            return Ok(Vec::new());
        }
        let params = super::super::to_append(&self.target);
        let insert = InsertBuilder::new(self.target.clone()).with_params(&params);
        let written = insert.execute_uncommitted(batches.to_vec()).await;
        let written = written.map_err(|e| fault::of("write rows", e))?;
        match written.operation {
            Operation::Append { fragments } => Ok(fragments),
            other => Err(Error::new(Kind::Internal, format!("an append became {other}"))),
        }
    }
}
