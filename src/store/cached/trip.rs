//! Flies a flight: from the disk cache as far as that goes, then from the store, into the block cache.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt as _;
use tokio::sync::OwnedSemaphorePermit;

use super::Object;
use crate::error::{Error, Kind, Result};
use crate::store::blocks::Extent;
use crate::store::fetch::Meta;
use crate::store::flight::{self, Flight, Intake};
use crate::store::meter::Figures;
use crate::units::{self, BlockNumber};

/// Blocks that are read from the disk cache at once.
const DISK_READS: usize = 16;

/// Leave to ask for something ahead of a reader.
pub type Leave = OwnedSemaphorePermit;

/// A flight under way. However it ends, the object forgets it, what was reserved and did not come
/// is given back, and everybody who waits hears of it, in this order.
pub struct Trip {
    object: Arc<Object>,
    flight: Arc<Flight>,
    /// What is before this offset came from the disk cache.
    on_disk: u64,
    result: Option<Result<()>>,
    /// Held until it lands, where it goes ahead of a reader.
    _leave: Option<Leave>,
}

impl Trip {
    /// A flight that the object knows of and that is about to start; holds its leave until it lands.
    pub fn new(object: Arc<Object>, flight: Arc<Flight>, leave: Option<Leave>) -> Self {
        Self { object, flight, on_disk: 0, result: None, _leave: leave }
    }

    /// Flies it.
    pub async fn fly(mut self) {
        self.take_from_disk().await;
        let (from, patience) = (self.object.from.clone(), self.object.shared.patience);
        if let Some(known) = self.object.known.get() {
            self.flight.bound(known.length);
        }
        let fetched = flight::fetch(&*from, &self.flight, patience, &self).await;
        self.result = Some(fetched);
    }

    /// Takes from the disk cache what it has, up to the first block that it has not.
    async fn take_from_disk(&mut self) {
        let object = self.object.clone();
        object.recall().await;
        let Some(((disk, _), known)) = object.disk().zip(object.known()) else { return };
        self.flight.bound(known.meta.length);
        let numbers = object.there(&self.flight.blocks());
        let reads = numbers.map(|number| disk.block(&known, BlockNumber::new(number)));
        let mut blocks = futures::stream::iter(reads).buffered(DISK_READS);
        while let Some(Some(bytes)) = blocks.next().await {
            Figures::add(&object.shared.figures.disk_hits, 1);
            self.on_disk = self.flight.rest().start + units::u64_of(bytes.len());
            self.piece(&bytes);
        }
    }

    /// Keeps what came.
    fn keep(&self, extent: Extent) {
        let object = &self.object;
        let block = object.shared.sizes.block;
        if let Some(((disk, _), known)) = object.disk().zip(object.known()) {
            let blocks = extent.bytes.chunks(units::usize_of(block.get()));
            for (number, bytes) in (extent.first.get()..).map(BlockNumber::new).zip(blocks) {
                if number.start(block).get() >= self.on_disk {
                    // What waits for the disk must not hold all of the extent.
                    disk.keep(&known, number, Bytes::copy_from_slice(bytes));
                }
            }
        }
        object.shared.blocks.keep(object.id, extent);
    }
}

impl Intake for Trip {
    fn meta(&self, meta: &Meta) -> Result<()> {
        self.object.compare(meta)
    }

    fn piece(&self, bytes: &[u8]) {
        for extent in self.flight.arrive(bytes) {
            self.keep(extent);
        }
    }
}

impl Drop for Trip {
    fn drop(&mut self) {
        let (unfinished, missing) = self.flight.close();
        if let Some(blocks) = unfinished {
            self.keep(blocks);
        }
        self.object.lock().flights.retain(|flight| !Arc::ptr_eq(flight, &self.flight));
        self.object.shared.blocks.release(self.object.weight(&(0..missing)));
        let lost = || Err(Error::new(Kind::Internal, "a fetch was given up"));
        self.flight.land(self.result.take().unwrap_or_else(lost));
    }
}
